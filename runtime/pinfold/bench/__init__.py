"""Benchmarks that a user runs on a model of theirs.

In: a `Runtime`. Out: rows of figures. It imports runtime, results and errors, and prints nothing.

    workloads.py   what is asked: edits, tool calls, quotations, talk
    draft.py       each workload plainly and with drafts, on the same prefix
"""
