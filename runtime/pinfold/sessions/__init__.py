"""Sessions: tokens -> KV that already exists.

In: the tokens of a prompt and a salt. Out: an engine sequence that already holds the longest prefix known, and a
report of what was found. Everything here runs on the engine's owner thread. It may import errors, results and
engines.base; it knows nothing of text, templates or sampling.

    prefix_tree.py  the longest common prefix among token sequences
    pins.py         pins and their times to live
    shelf.py        the sequences that are kept, found by prefix and given up in order
    early.py        pins on disk, unfolded while the engine loads
    space.py        sequence ids, cells and memory: where kept KV lives, and how room is made
    manager.py      a request's way through, pins and named sessions
"""
