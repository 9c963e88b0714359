"""Scores of parses, as EVALB computes them."""
