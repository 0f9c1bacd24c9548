"""A chat over a folder of notes in which every answer cites the passages that it rests on.

    python examples/rag_chat.py
    python examples/rag_chat.py --model path/to/model.gguf --docs my-notes --chat

An answer is held to a schema whose citations can only be the numbers of the passages that were shown, so that no source
is ever made up. The instructions are pinned; each turn computes its passages and its question, and no more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import CacheControl, CachePoint, ChatMessage, ChatResponse, MessageRole, TextBlock
from llama_index.core.schema import NodeWithScore
from llama_index.retrievers.bm25 import BM25Retriever
from rag_query_engine import DOCS, EMBEDDED_MODEL, N_CTX, load_nodes, reuse_line

from llama_index.llms.pinfold import Pinfold
from pinfold.errors import PinfoldError

QUESTIONS = ("What is a pin?", "And how long does it live?")
TOP_K = 3
LAST_TURNS = 4

INSTRUCTIONS = """\
You answer questions about a software project from numbered passages of its documentation.

- The passages of the last message are all you know. Do not guess what they leave out.
- Answer in one or two sentences, in the words of the passages, with names and numbers as they stand there.
- Cite the numbers of the passages that your answer rests on, and of no others.
- If they do not hold the answer, say so, and cite none.
- Earlier questions and answers tell you what "it" or "there" means. They are no source.
"""


class Chat:
    """A conversation. What was asked and answered is kept; passages are shown with their own question only."""

    def __init__(self, llm: Pinfold, retriever: BM25Retriever) -> None:
        self._llm = llm
        self._retriever = retriever
        pin_up_to_here = CachePoint(cache_control=CacheControl(type="ephemeral", ttl="1h"))
        blocks = [TextBlock(text=INSTRUCTIONS), pin_up_to_here]
        self._instructions = ChatMessage(role=MessageRole.SYSTEM, blocks=blocks)
        self._said: list[ChatMessage] = []

    def ask(self, question: str) -> dict[str, Any]:
        """The answer, its sources, and the report of the call."""
        found = self._retriever.retrieve(self._search_text(question))
        response = self._llm.chat(
            [self._instructions, *self._said[-2 * LAST_TURNS :], _asked(question, found)],
            response_format=answer_schema(len(found)),
        )
        answer, sources = _read(response, found)
        self._said += [
            ChatMessage(role=MessageRole.USER, content=question),
            ChatMessage(role=MessageRole.ASSISTANT, content=answer),
        ]
        report = response.additional_kwargs["pinfold"]
        return {"question": question, "answer": answer, "sources": sources, "report": report}

    def _search_text(self, question: str) -> str:
        """The question with the one before it, since "how long does it live?" has no words to look for."""
        before = [message.content or "" for message in self._said if message.role == MessageRole.USER]
        return " ".join([*before[-1:], question])


def answer_schema(passages: int) -> dict[str, Any]:
    """The form of an answer that can cite passages 1 to `passages`."""
    number = {"type": "integer", "enum": list(range(1, passages + 1))} if passages else {"type": "integer"}
    properties = {
        "answer": {"type": "string", "maxLength": 400},
        "passages": {"type": "array", "items": number, "maxItems": passages},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _asked(question: str, found: Sequence[NodeWithScore]) -> ChatMessage:
    passages = "\n\n".join(f"[{number}] {node.get_content()}" for number, node in enumerate(found, 1))
    return ChatMessage(role=MessageRole.USER, content=f"{passages or 'No passage was found.'}\n\nQuestion: {question}")


def _read(response: ChatResponse, found: Sequence[NodeWithScore]) -> tuple[str, list[str]]:
    """The answer's text and the sections that it cites; one that was cut off is shown as it is."""
    text = response.message.content or ""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        return text, []
    cited = [found[number - 1].metadata for number in sorted(set(answer["passages"]))]
    return answer["answer"], [f"{source['file']}: {source['section']}" for source in cited]


def questions_of(options: argparse.Namespace) -> Iterator[str]:
    """Those of the command line, or with --chat what is typed until it ends."""
    if not options.chat:
        yield from options.question or QUESTIONS
        return
    while True:
        try:
            question = input("> ")
        except EOFError:
            return
        if question.strip():
            yield question


def main(arguments: Sequence[str] | None = None) -> int:
    """Asks and shows."""
    parser = argparse.ArgumentParser(description="A chat over Markdown files whose answers cite their sources.")
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="alias, path, Hugging Face id or a server's address")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of .md files (default: the project's docs/)")
    parser.add_argument("--question", action="append", help="may be given several times; default: two about pins")
    parser.add_argument("--chat", action="store_true", help="ask at the terminal instead")
    parser.add_argument("--json", action="store_true", help="one JSON object a line in place of text")
    options = parser.parse_args(arguments)
    try:
        llm = Pinfold(options.model, n_ctx=N_CTX, max_tokens=200, repetition_penalty=1.1)
        nodes = load_nodes(options.docs, llm)
        if not nodes:
            print(f"{options.docs} holds no Markdown. Name a folder with .md files: --docs FOLDER", file=sys.stderr)
            return 1
        chat = Chat(llm, BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=min(TOP_K, len(nodes))))
        for question in questions_of(options):
            result = chat.ask(question)
            if options.json:
                print(json.dumps(result))
                continue
            print(f"\nQ: {question}\nA: {result['answer']}")
            print("\n".join(f"   {source}" for source in result["sources"]) or "   (no passage is cited)")
            print(f"   {reuse_line(result['report'])}")
    except PinfoldError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
