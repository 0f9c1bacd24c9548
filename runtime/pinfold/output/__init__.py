"""Tokens to text, reasoning and calls.

What enters: the bytes of each token as it is decoded, the names of the tools that were offered, stop strings, and
for constrained output the vocabulary (an ``llguidance.LLTokenizer``) with the tools' or the answer's JSON schema.

What leaves: text, reasoning and `results.ToolCall` / `InvalidToolCall` values, piece by piece, the same at every way
of cutting the stream; and for constrained output a mask on the logits.

The way of a token: `text.TextDecoder` -> `stop.StopScanner` -> `parser.OutputParser`, which splits off reasoning
(`reasoning`) and calls (`tool_calls`, one parser for each family of formats). `constrain` stands before the sampler;
its rules are put together in `grammar`, from how a family writes its calls (`tool_calls.forms`).

This room imports errors, results, options and engines.base, and nothing else of Pinfold: it knows no message, no
prompt and no session. llguidance and numpy are imported by `constrain` alone.
"""
