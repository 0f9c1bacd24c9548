"""Facts out of free text, as objects of a pydantic class: a grammar holds every answer to its schema.

    python examples/extraction.py
    python examples/extraction.py --model path/to/model.gguf --file note.txt --file other.txt

The instructions and the schema are the same for every note, so that they are computed once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage, SystemMessage
from pydantic import BaseModel, Field

from langchain_pinfold import ChatPinfold
from pinfold.errors import PinfoldError

EMBEDDED_MODEL = "smollm2"
NOTES = (
    "The Dawn came in on Tuesday with 12 barrels of salt and 3 crates of copper. One crate was wet.",
    "Two sacks of rye were brought by cart this morning. The carter asks to be paid by Friday.",
    "Nothing came in today. The fog was too heavy for the Cormorant.",
)
INSTRUCTIONS = """\
You keep the book of a harbour. From each note you take what was delivered.

- Only what the note says came in counts. What is expected, ordered or sent away does not.
- Numbers in words become figures.
- A remark is something that somebody should look into, such as damage or an open payment, in a few words.
"""


class Unit(StrEnum):
    """What goods come in."""

    barrel = "barrel"
    crate = "crate"
    sack = "sack"
    other = "other"


class Goods(BaseModel):
    """Goods of one kind."""

    what: str = Field(max_length=24, description="the goods, such as salt")
    count: int = Field(ge=0, le=9999)
    unit: Unit


class Delivery(BaseModel):
    """What a note says was delivered."""

    by: str | None = Field(max_length=24, description="the ship or person that brought it")
    goods: list[Goods] = Field(max_length=4)
    remark: str | None = Field(max_length=60)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the notes and prints one object for each."""
    parser = argparse.ArgumentParser(description="Takes deliveries out of notes, as JSON.")
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="alias, path, Hugging Face id or a server's address")
    parser.add_argument("--file", action="append", type=Path, help="a note; may be given several times")
    options = parser.parse_args(arguments)
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = SystemMessage([{"type": "text", "text": INSTRUCTIONS, **mark}])
    try:
        notes = [path.read_text(encoding="utf-8") for path in options.file] if options.file else NOTES
        model = ChatPinfold(model=options.model, max_tokens=256, frequency_penalty=0.6)
        taker = model.with_structured_output(Delivery, include_raw=True)
        for note in notes:
            taken = taker.invoke([system, HumanMessage(note)])
            if isinstance(taken["parsing_error"], OutputParserException):
                print(f"not taken: {taken['parsing_error']}", file=sys.stderr)
                continue
            usage = taken["raw"].usage_metadata
            reused = f"{usage['input_token_details']['cache_read']} of {usage['input_tokens']} tokens cached"
            print(json.dumps({"note": note, **taken["parsed"].model_dump(mode="json")}, ensure_ascii=False))
            print(reused, file=sys.stderr)
    except (PinfoldError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
