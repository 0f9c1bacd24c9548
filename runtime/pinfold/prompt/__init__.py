"""The prompt room: messages and tools become tokens.

Enters: OpenAI-style message and tool dicts, the model's chat template (untrusted), an engine's `Tokenizer`.
Leaves: a `Prompt` (tokens, where each cache mark ends, what stands at any token) or a `PinnedPrefix`.
Not imported here: engines, sessions, decoding, numpy. Only errors, options and the contract in engines.base.

The walk: ``messages`` and ``tools`` check and normalise the request, ``adapt`` fits it to what ``traits`` learned of
the template, ``template`` renders it in the ``sandbox``, ``renderer`` tokenises it, ``continuations`` show how much
of it stays whatever follows, ``segments`` finds places in it and ``stability`` says where a growing conversation stops
being a prefix of itself. ``lint`` puts together what will end reuse: text that is ``volatile``, ``differences`` from
another run, and what ``stability`` found, each with its cost by ``measure``.
"""

from __future__ import annotations

from pinfold.prompt.lint import check_prompt
from pinfold.prompt.messages import Conversation, FunctionCall, Message, normalize
from pinfold.prompt.renderer import PinnedPrefix, Prompt, PromptRenderer
from pinfold.prompt.segments import Breakpoint, Place
from pinfold.prompt.stability import GrowthBreak, explain_growth
from pinfold.prompt.template import ChatTemplate
from pinfold.prompt.tools import Tool, ToolChoice, canonical_tools, parse_tool_choice
from pinfold.prompt.traits import TemplateTraits

__all__ = [
    "Breakpoint",
    "ChatTemplate",
    "Conversation",
    "FunctionCall",
    "GrowthBreak",
    "Message",
    "PinnedPrefix",
    "Place",
    "Prompt",
    "PromptRenderer",
    "TemplateTraits",
    "Tool",
    "ToolChoice",
    "canonical_tools",
    "check_prompt",
    "explain_growth",
    "normalize",
    "parse_tool_choice",
]
