"""The parts of `python -m trainer`: finding a recipe, its flags, its modes, and errors in a user's own code."""
