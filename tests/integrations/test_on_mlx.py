"""Both adapters on the MLX engine with a small random model: answers, streams, counts. Whole suites are soak tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from llama_index.core.llms import ChatMessage

from langchain_pinfold import ChatPinfold
from llama_index.llms.pinfold import Pinfold
from pinfold import Runtime

RULES = "Some words that are kept, and a few more of them."


@pytest.fixture(scope="module", params=["f16", "q8/q4"])
def runtime(request: pytest.FixtureRequest, random_mlx: Callable[[str], Path]) -> Iterator[Runtime]:
    with Runtime(random_mlx("llama_64"), n_ctx=512, kv_resident=request.param) as opened:
        yield opened


def test_langchain(runtime: Runtime) -> None:
    model = ChatPinfold(runtime=runtime, max_tokens=4)
    messages = [SystemMessage(RULES), HumanMessage("go on")]
    cold, warm = model.invoke(messages), model.invoke(messages)
    assert warm.text == cold.text
    assert cold.usage_metadata is not None
    assert warm.usage_metadata is not None
    assert warm.usage_metadata["input_token_details"]["cache_read"] == cold.usage_metadata["input_tokens"] - 1
    assert "".join(part.text for part in model.stream(messages)) == cold.text


async def test_llama_index(runtime: Runtime) -> None:
    llm = Pinfold(runtime=runtime, max_tokens=4)
    messages = [ChatMessage(role="system", content=RULES), ChatMessage(role="user", content="and then")]
    cold = llm.chat(messages)
    *_, last = llm.stream_chat(messages)
    found = await llm.achat(messages)
    assert cold.message.content == last.message.content == found.message.content
    usage = found.raw["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
