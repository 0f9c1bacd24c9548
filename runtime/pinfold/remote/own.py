"""Our own rendering for a server that takes raw prompts and gives its template and tokenizer away."""

from __future__ import annotations

from dataclasses import dataclass

from pinfold.errors import ServerError, TemplateError, UnsupportedModeError
from pinfold.options import RuntimeOptions
from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt.template import ChatTemplate
from pinfold.remote.address import Address
from pinfold.remote.facts import ServerFacts
from pinfold.remote.tokenizer import ServerTokenizer
from pinfold.remote.transport import Transport

__all__ = ["OwnRendering", "own_rendering"]


@dataclass(frozen=True)
class OwnRendering:
    """Renders for one server. `prompt` is what is sent for a rendered text."""

    renderer: PromptRenderer
    tokenizer: ServerTokenizer

    def raw(self, text: str, facts: ServerFacts) -> str:
        """`text` without the first token that the server adds by itself."""
        bos = facts.bos_token
        return text[len(bos) :] if bos and text.startswith(bos) and self.tokenizer.adds_bos() else text


def own_rendering(
    transport: Transport, address: Address, facts: ServerFacts, options: RuntimeOptions
) -> tuple[OwnRendering | None, ServerFacts]:
    """The rendering for this server, None where its chats are sent as they are; and the facts with the reason.

    Raises:
        UnsupportedModeError: rendering='own' was asked for and the server does not allow it.
        TemplateError: the template that was given is none.
    """
    source = options.chat_template or facts.template
    reason = _why_not(facts, source, options)
    rendering = None
    if not reason:
        try:
            template = ChatTemplate(source, facts.bos_token, facts.eos_token)
            tokenizer = ServerTokenizer(transport, address, facts)
            tokenizer.adds_bos()
            rendering = OwnRendering(PromptRenderer(template, tokenizer), tokenizer)
        except (ServerError, TemplateError) as e:
            if options.rendering == "own":
                raise
            reason = str(e)
    if rendering is None and options.rendering == "own":
        msg = f"rendering='own': {reason}. Use rendering='messages' with this server."
        raise UnsupportedModeError(msg)
    if rendering is None:
        return None, facts.with_feature("own rendering", "no", reason)
    facts = facts.with_feature("own rendering", "yes", "its template is rendered here")
    return rendering, facts.with_feature("tool calls", "yes", "tools are rendered and calls are read here")


def _why_not(facts: ServerFacts, source: str | None, options: RuntimeOptions) -> str:
    if options.rendering == "messages":
        return "rendering='messages' was asked for"
    if source is None:
        return "the server does not show its chat template; one may be given as chat_template"
    for name in ("raw prompts", "tokenizer"):
        if not facts.has(name):
            return f"the server is not known to have {'a ' if name == 'tokenizer' else ''}{name}"
    return ""
