"""Batch scoring: candidates, probabilities of user × item pairs and of rows, top-k lists, their quality.

Notation in docstrings: P pairs (or rows) scored at once, D dense and C categorical features, U users, N
items, W the length of the longest candidate list of a block.
"""
