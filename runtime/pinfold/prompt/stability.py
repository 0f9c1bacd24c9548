"""Where a growing conversation stops being a prefix of itself, and so loses what was computed of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pinfold.errors import TemplateError
from pinfold.prompt.continuations import common_length
from pinfold.prompt.messages import normalize
from pinfold.prompt.renderer import Prompt, PromptRenderer
from pinfold.prompt.segments import Place

__all__ = ["GrowthBreak", "explain_growth"]

_EXCERPT = 40


@dataclass(frozen=True, slots=True)
class GrowthBreak:
    """A step at which the prompt changed before its end.

    Attributes:
        messages: how many messages there were before the step; one or more joined them.
        place: what stands where the two renderings part.
        token: position of the first token that differs.
        lost_tokens: tokens of the shorter rendering from there on, which are computed again.
        before: how the shorter rendering goes on from there; `after` the longer one.
    """

    messages: int
    place: Place
    token: int
    lost_tokens: int
    before: str
    after: str


def explain_growth(
    renderer: PromptRenderer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[GrowthBreak, ...]:
    """The steps, in order, at which rendering n messages is no prefix of rendering the next ones; empty is stable.

    System messages alone are no step, and neither is a beginning that the template refuses.

    Raises:
        InvalidRequestError, TemplateError: as for `PromptRenderer.render` of all the messages.
    """
    breaks: list[GrowthBreak] = []
    before: tuple[int, Prompt] | None = None
    leading = sum(1 for _ in takewhile(lambda message: message.role == "system", normalize(messages, tools).messages))
    for count in range(min(leading + 1, len(messages)), len(messages) + 1):
        try:
            prompt = renderer.render(messages[:count], tools, generation=False)
        except TemplateError:
            if count == len(messages):
                raise
            continue
        if before is not None:
            breaks += _compare(renderer, *before, prompt)
        before = count, prompt
    return tuple(breaks)


def _compare(renderer: PromptRenderer, count: int, shorter: Prompt, longer: Prompt) -> list[GrowthBreak]:
    token = common_length(shorter.tokens, longer.tokens)
    lost = len(shorter.tokens) - token
    if not lost:
        return []
    before, after = (renderer.tokenizer.decode(prompt.tokens[token:][:_EXCERPT]) for prompt in (shorter, longer))
    return [GrowthBreak(count, longer.place(token), token, lost, before[:_EXCERPT], after[:_EXCERPT])]
