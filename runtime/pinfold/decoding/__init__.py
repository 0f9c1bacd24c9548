"""Decoding: logits -> tokens.

In: jobs (tokens, options, a sink for events). Out: events, and KV handed back to sessions/. Everything but `job.py`
runs on the engine's owner thread.

    job.py         what a caller hands over, and the events that come back
    generation.py  one request while it runs: its tokens, sampler, text and clock
    loop.py        one forward per step for all requests in flight
    planner.py     which tokens go into that forward
    sampling.py    a row of logits -> a token

It imports engines.base, sessions, output's text, stop, tool_calls and constrain, errors, results and options; it knows
nothing of messages, templates, or frameworks.
"""
