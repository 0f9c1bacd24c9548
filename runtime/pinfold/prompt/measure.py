"""What a change to a prompt costs: how many tokens of the prefix that should last come after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pinfold.prompt.continuations import common_length
from pinfold.prompt.messages import Conversation, normalize
from pinfold.prompt.renderer import Prompt, PromptRenderer

__all__ = ["Measure", "Parting", "question_index"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_EXCERPT = 60
_FEW_TOKENS = 40  # enough for an excerpt


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a changed prompt is no longer the one that was measured.

    Attributes:
        token: position of the first token that differs.
        lost_tokens: tokens of the stable prefix from there on.
        where: the place in words.
        excerpt: how the prompt goes on there.
    """

    token: int
    lost_tokens: int
    where: str
    excerpt: str


class Measure:
    """A prompt and its stable prefix: what every run of one agent is meant to have in common.

    Attributes:
        prompt: the prompt as it is asked.
        dates: what the template wrote of dates and times by itself.
        stable_tokens: length of the prefix: tools, and the messages before the first question.
    """

    def __init__(self, renderer: PromptRenderer, messages: Messages, tools: Tools) -> None:
        self._renderer = renderer
        self.prompt: Prompt = renderer.render(messages, tools)
        conversation = normalize(messages, tools)
        renderer.text(conversation, generation=True)
        self.dates = tuple(date for date in renderer.template.dates if date in self.prompt.text)
        head = messages[: question_index(conversation)]
        stable = renderer.prefix(head, tools).tokens if head else _tokens_before_any_question(renderer, tools)
        self.stable_tokens = common_length(stable, self.prompt.tokens)

    def parting(self, messages: Messages, tools: Tools) -> Parting | None:
        """Where the prompt of these messages and tools parts from this one; None if nowhere before its end.

        Raises:
            InvalidRequestError, TemplateError: as for `PromptRenderer.render`.
        """
        text = self._renderer.text(normalize(messages, tools), generation=True)
        return None if text == self.prompt.text else self.parting_of_text(text)

    def parting_of_text(self, text: str) -> Parting:
        """Where the prompt of this text parts from this one."""
        token = common_length(self.prompt.tokens, _encode(self._renderer, text))
        following = self._renderer.tokenizer.decode(self.prompt.tokens[token:][:_FEW_TOKENS])[:_EXCERPT]
        lost = max(0, self.stable_tokens - token)
        return Parting(token, lost, self.prompt.place(token).where, following)


def question_index(conversation: Conversation) -> int:
    """Where the part of a conversation that is one run's own begins: at the last user turn before the first answer."""
    leading = list(takewhile(lambda message: message.role in ("system", "user"), conversation.messages))
    questions = [index for index, message in enumerate(leading) if message.role == "user"]
    return questions[-1] if questions else len(leading)


def _tokens_before_any_question(renderer: PromptRenderer, tools: Tools) -> Sequence[int]:
    """What two conversations that begin with different questions share; the second goes on for another turn."""
    first = [{"role": "user", "content": "Hi"}]
    second = [{"role": "user", "content": "\n\n1."}, {"role": "assistant", "content": "Hi"}, *first]
    texts = (renderer.text(normalize(messages, tools)) for messages in (first, second))
    one, other = (_encode(renderer, text) for text in texts)
    return one[: common_length(one, other)]


def _encode(renderer: PromptRenderer, text: str) -> Sequence[int]:
    return renderer.tokenizer.encode(text, special=True, bos=True)
