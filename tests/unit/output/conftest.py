from __future__ import annotations

import pytest
from llguidance import LLTokenizer, TokenizerWrapper

from tests.support.byte_vocabulary import ByteVocabulary


@pytest.fixture(scope="session")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteVocabulary()))
