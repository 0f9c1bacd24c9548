"""Block drafters: small networks that read a target's layers and guess a block of tokens in one forward."""
