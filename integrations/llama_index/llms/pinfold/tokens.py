"""How LlamaIndex counts tokens: by the model's own tokenizer, so that what it packs fits."""

from __future__ import annotations

from collections.abc import Callable

import llama_index.core
from llama_index.core.utils import set_global_tokenizer

__all__ = ["TEMPLATE_TOKENS", "count_with"]

TEMPLATE_TOKENS = 96
"""What a chat template adds to a prompt, at most: marks of roles, and the system prompt that some bring along."""


def count_with(tokenizer: Callable[[str], list[int]]) -> None:
    """Counts with `tokenizer` unless another was chosen. LlamaIndex's own default knows another model's tokens, and
    fetches them from the network."""
    if llama_index.core.global_tokenizer is None:
        set_global_tokenizer(tokenizer)
