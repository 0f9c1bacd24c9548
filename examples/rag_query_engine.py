"""A LlamaIndex query engine over a folder of notes, whose instructions are computed once.

    python examples/rag_query_engine.py
    python examples/rag_query_engine.py --model path/to/model.gguf --docs my-notes --question "What is a pin?"

Every question sends the same instructions and then other passages. A CachePoint behind the instructions pins them:
the first question computes them, the next ones find them ready. Retrieval is BM25, so nothing needs a network.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core import Document, Settings
from llama_index.core.base.llms.types import CacheControl, CachePoint, ChatMessage, MessageRole, TextBlock
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent
from llama_index.core.node_parser import MarkdownNodeParser, TokenTextSplitter
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.prompts import ChatPromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import BaseNode
from llama_index.retrievers.bm25 import BM25Retriever
from pydantic import Field

from llama_index.llms.pinfold import Pinfold
from pinfold.errors import PinfoldError

EMBEDDED_MODEL = "smollm2"
DOCS = Path(__file__).resolve().parent.parent / "docs"
QUESTIONS = ("What is a pin?", "How long does a pin live?", "How does a request say what it reused?")

N_CTX = 4096
MAX_TOKENS = 120
CHUNK_TOKENS = 256
TOP_K = 3

INSTRUCTIONS = """\
You answer questions about a software project from passages of its documentation.

How to read the passages
- Each question comes with passages, parted by blank lines. They are all you know about the project.
- A passage may be cut off at its start or end. Do not guess what stood there.
- Where two passages disagree, say that they do, and what each of them says.
- A table is a list of facts: read each row on its own, under the names in its head.
- Code in a passage is an example. Repeat it only if the question asks how something is written.

How to answer
- Begin with the answer itself, in one sentence. Then give the reason in one or two more.
- Use the words of the passages for names: of functions, options, fields, files and commands.
- Give numbers with their units, exactly as the passages have them.
- If the passages do not hold the answer, say: "The documentation does not say." Add nothing to it.
- Do not mention the passages, these rules, or yourself. Do not greet. Do not ask a question back.
- Write plain text without headings. Use a list only if the question asks for several things.

Before you answer, check each sentence against the passages, and leave out every sentence that none of them supports.
"""


def load_nodes(folder: Path, llm: Pinfold) -> list[BaseNode]:
    """The folder's Markdown files in passages of at most CHUNK_TOKENS tokens, parted at headings where possible."""
    documents = [
        Document(text=path.read_text(encoding="utf-8"), metadata={"file": str(path.relative_to(folder))})
        for path in sorted(folder.rglob("*.md"))
    ]
    sections = MarkdownNodeParser().get_nodes_from_documents(documents)
    for section in sections:
        heading = section.get_content().partition("\n")[0].lstrip("# ")
        section.metadata = {"file": section.metadata["file"], "section": heading}
    splitter = TokenTextSplitter(chunk_size=CHUNK_TOKENS, chunk_overlap=0, tokenizer=llm.tokenizer)
    return splitter.get_nodes_from_documents(sections)


def pinned_prompt(question: str) -> ChatPromptTemplate:
    """The instructions with a CachePoint behind them, then what changes from call to call."""
    pin_up_to_here = CachePoint(cache_control=CacheControl(type="ephemeral", ttl="1h"))
    return ChatPromptTemplate(
        [
            ChatMessage(role=MessageRole.SYSTEM, blocks=[TextBlock(text=INSTRUCTIONS), pin_up_to_here]),
            ChatMessage(role=MessageRole.USER, content=question),
        ]
    )


def build_engine(llm: Pinfold, nodes: Sequence[BaseNode]) -> RetrieverQueryEngine:
    """BM25 over the passages; those that share no word with the question are left out."""
    synthesizer = get_response_synthesizer(
        llm=llm,
        text_qa_template=pinned_prompt("Passages:\n\n{context_str}\n\nQuestion: {query_str}"),
        refine_template=pinned_prompt(
            "More passages:\n\n{context_msg}\n\nThe answer so far: {existing_answer}\n\n"
            "Better the answer where these passages add to it.\n\nQuestion: {query_str}"
        ),
    )
    return RetrieverQueryEngine(
        retriever=BM25Retriever.from_defaults(nodes=list(nodes), similarity_top_k=min(TOP_K, len(nodes))),
        response_synthesizer=synthesizer,
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=1e-6)],
    )


class ReportCollector(BaseEventHandler):
    """Keeps what each call to the model reports of itself."""

    reports: list[dict[str, Any]] = Field(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex knows it."""
        return "ReportCollector"

    def handle(self, event: Any, **_: Any) -> None:
        """Called for every event; the end of a chat is the one with a report."""
        if isinstance(event, LLMChatEndEvent) and event.response is not None:
            self.reports.append(event.response.additional_kwargs["pinfold"])


def ask(engine: RetrieverQueryEngine, collector: ReportCollector, question: str) -> dict[str, Any]:
    """The answer with its sources and one report for each call to the model."""
    collector.reports.clear()
    response = engine.query(question)
    sources = [
        {
            "file": found.metadata["file"],
            "section": found.metadata["section"],
            "score": round(found.score or 0.0, 2),
        }
        for found in response.source_nodes
    ]
    return {
        "question": question,
        "answer": str(response).strip(),
        "sources": sources,
        "calls": list(collector.reports),
    }


def reuse_line(report: dict[str, Any]) -> str:
    """One line: hit kind, cached of total tokens, time to first token, decode speed."""
    usage, cache, timings = report["usage"], report["cache"], report["timings"]
    return (
        f"{cache['hit_kind']}: {usage['cached_tokens']} of {usage['prompt_tokens']} prompt tokens cached, "
        f"TTFT {timings['ttft_s']:.2f} s, {timings['decode_tps'] or 0.0:.0f} tok/s"
    )


def show(result: dict[str, Any]) -> None:
    """The result for people."""
    print(f"\nQ: {result['question']}\nA: {result['answer']}")
    for source in result["sources"]:
        print(f"   [{source['score']:5.2f}] {source['file']}: {source['section']}")
    if not result["sources"]:
        print("   (no passage shares a word with the question)")
    for report in result["calls"]:
        print(f"   {reuse_line(report)}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Answers questions from a folder of Markdown files.")
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="alias, path or Hugging Face id (default: %(default)s)")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of .md files (default: the project's docs/)")
    parser.add_argument("--question", action="append", help="may be given several times; default: three about pinning")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="longest answer (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Asks the questions one after the other; 1 if they could not be asked."""
    options = parse(arguments)
    collector = ReportCollector()
    get_dispatcher().add_event_handler(collector)
    try:
        llm = Pinfold(options.model, n_ctx=N_CTX, max_tokens=options.max_tokens, repetition_penalty=1.1)
        Settings.tokenizer = llm.tokenizer  # LlamaIndex counts as the model does; its own would need a download
        nodes = load_nodes(options.docs, llm)
        if not nodes:
            print(f"{options.docs} holds no Markdown. Name a folder with .md files: --docs FOLDER", file=sys.stderr)
            return 1
        engine = build_engine(llm, nodes)
        if not options.json:
            note = " (tiny: it shows the reuse, not good answers)" if options.model == EMBEDDED_MODEL else ""
            print(f"{len(nodes)} passages from {options.docs}, model {options.model}{note}")
        results = []
        for question in options.question or QUESTIONS:
            results.append(ask(engine, collector, question))
            if not options.json:
                show(results[-1])
    except PinfoldError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    finally:
        get_dispatcher().event_handlers.remove(collector)
    if options.json:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
