"""Drafters: tokens so far -> tokens that may come next, guessed cheaply.

In: the tokens of one request, its grammar. Out: a `Guess`. A guess is never trusted: the loop verifies every token of
it. Everything runs on the engine's thread.

    base.py     the contract
    lookup.py   what followed the same tokens earlier in the prompt or the answer
    history.py  what followed the same tokens in earlier answers of the same salt
    runs.py     the index under both
    grammar.py  what the grammar forces
    model.py    what a smaller model says

It imports engines.base, output.constrain and errors only.
"""
