"""`PinfoldLLM`: plain text in, plain text out, without a chat template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables.config import ContextThreadPoolExecutor

from langchain_pinfold import calls
from langchain_pinfold.answers import to_usage
from langchain_pinfold.settings import PinfoldSettings
from pinfold.results import Completion, Delta

__all__ = ["PinfoldLLM"]

_MOST_AT_ONCE = 32


class PinfoldLLM(PinfoldSettings, LLM):
    """A local model that goes on with a text. Prompts that begin alike are computed once.

    Token counts and reports are in each generation's `generation_info` (``usage_metadata`` and ``pinfold``).
    """

    def _call(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> str:
        return self._complete(prompt, stop, kwargs).text

    async def _acall(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> str:
        return (await self._acomplete(prompt, stop, kwargs)).text

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> LLMResult:
        # All at once: the engine computes requests in flight together.
        with ContextThreadPoolExecutor(max_workers=min(len(prompts), _MOST_AT_ONCE) or 1) as pool:
            answers = pool.map(lambda prompt: self._complete(prompt, stop, kwargs), prompts)
            return LLMResult(generations=[[_generation(done)] for done in answers])

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> LLMResult:
        tasks = [asyncio.create_task(self._acomplete(prompt, stop, kwargs)) for prompt in prompts]
        try:
            answers = await asyncio.gather(*tasks)
        finally:  # where one fails, the others are stopped
            for task in tasks:
                task.cancel()
        return LLMResult(generations=[[_generation(done)] for done in answers])

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        runtime = self._runtime_for(kwargs.get("model"))
        deltas = calls.stream(runtime.stream_complete, self._request(prompt, stop, kwargs), self.max_retries)
        try:
            for delta in deltas:
                chunk = _chunk(delta)
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        finally:
            deltas.close()

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        runtime = await asyncio.to_thread(self._runtime_for, kwargs.get("model"))
        deltas = calls.astream(runtime.astream_complete, self._request(prompt, stop, kwargs), self.max_retries)
        try:
            async for delta in deltas:
                chunk = _chunk(delta)
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        finally:
            await deltas.aclose()

    def get_token_ids(self, text: str) -> list[int]:
        """Ids of `text` in the model's own vocabulary."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self.get_runtime().tokenize(text)

    @property
    def _llm_type(self) -> str:
        return "pinfold"

    def _complete(self, prompt: str, stop: list[str] | None, kwargs: dict[str, Any]) -> Completion:
        runtime = self._runtime_for(kwargs.get("model"))
        return calls.complete(runtime.complete, self._request(prompt, stop, kwargs), self.max_retries)

    async def _acomplete(self, prompt: str, stop: list[str] | None, kwargs: dict[str, Any]) -> Completion:
        runtime = await asyncio.to_thread(self._runtime_for, kwargs.get("model"))
        return await calls.acomplete(runtime.acomplete, self._request(prompt, stop, kwargs), self.max_retries)

    def _request(self, prompt: str, stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments for `complete` and its siblings. The runtime refuses by name what it does not know."""
        request = {**self._generation(), "salt": self.salt, **kwargs, "prompt": prompt}
        request.pop("model", None)
        if stop is not None:
            request["stop"] = stop
        return request


def _generation(done: Completion) -> Generation:
    return Generation(text=done.text, generation_info=_info(done))


def _chunk(delta: Delta) -> GenerationChunk:
    return GenerationChunk(text=delta.text, generation_info=_info(delta.done) if delta.done else None)


def _info(done: Completion) -> dict[str, Any]:
    return {
        "model_name": done.model,
        "finish_reason": done.finish_reason,
        "usage_metadata": to_usage(done.usage),
        "pinfold": done.report(),
    }
