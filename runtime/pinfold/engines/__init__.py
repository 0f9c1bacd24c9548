"""Engines: tokens in, logits out.

`base.py` is the contract, each folder or file beside it one implementation, `probe.py` the choice between them. An
engine imports nothing from the rooms that call it, and heavy packages only inside its own files.
"""
