"""Business rules after ranking, one a file: boost, maximum per category, exploration. Pure functions on matrices.

Notation: U users, W the longest candidate list of a block, N items, k places of a list. A user's candidates stand in a row of
(U, W) from the best ranking key down, places without a candidate last.
"""
