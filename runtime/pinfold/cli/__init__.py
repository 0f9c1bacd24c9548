"""The `pinfold` command. One file per command; `terminal.py` is how they all speak to people and to programs.

app.py        the command itself, its global options, errors
doctor.py     what can run here, and why not
chat.py       talk to a model
pins.py       try out a prompt that is to be pinned
models.py     names of models
store.py      what is kept on disk: list, look, delete, read
transfer.py   sessions to disk, out of a store and into one
opening.py    the Runtime of a command and its progress bar, or the store alone
terminal.py   tables, JSON, errors
"""

from __future__ import annotations

from pinfold.cli.app import app, main

__all__ = ["app", "main"]
