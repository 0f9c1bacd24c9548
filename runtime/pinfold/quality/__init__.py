"""What a fold costs an answer: measured on the model itself, never guessed from reconstruction error.

Enters: an engine and sample texts. Leaves: divergences of next-token distributions, and the recipe of a model with the
rung that each preset comes to. Work is given as generators that rest between forwards, so that requests go first.
Sessions, decoding, prompts and the disk may not be imported here.
"""
