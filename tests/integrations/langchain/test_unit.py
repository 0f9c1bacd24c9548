"""langchain-tests' standard unit suite. Nothing here loads a model or opens a socket."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_pinfold import ChatPinfold


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
class TestChatPinfoldUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[ChatPinfold]:
        return ChatPinfold

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "smollm2", "engine": "llama.cpp", "n_ctx": 2048, "kv_cells": 4096}

    @pytest.fixture(autouse=True)
    def _allow_third_party_class(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # load(allowed_objects="all") knows the classes in langchain-core's own table only; users pass theirs by class.
        loader = importlib.import_module("langchain_core.load.load")
        allowed = loader._get_default_allowed_class_paths("all") | {tuple(ChatPinfold.lc_id())}
        monkeypatch.setitem(loader._default_class_paths_cache, "all", allowed)
