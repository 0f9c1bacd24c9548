"""From the name of a model to its file: aliases, paths, Hugging Face ids, and the check that a file is whole."""

from __future__ import annotations

from pinfold.models.gguf import check_gguf
from pinfold.models.lookup import ALIASES, ModelKind, ResolvedModel, resolve

__all__ = ["ALIASES", "ModelKind", "ResolvedModel", "check_gguf", "resolve"]
