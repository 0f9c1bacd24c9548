"""Pinfold for LlamaIndex: a local model whose long prompts are computed once.

::

    from llama_index.llms.pinfold import Pinfold

    llm = Pinfold("smollm2")
    response = llm.chat(messages)
    response.additional_kwargs["cached_tokens"]
"""

from __future__ import annotations

from llama_index.llms.pinfold.base import Pinfold
from llama_index.llms.pinfold.errors import NoToolCallError, StructuredOutputError

__all__ = ["NoToolCallError", "Pinfold", "StructuredOutputError"]
