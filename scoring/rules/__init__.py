"""Business rules that change a ranking, one a file: boost, maximum per category, exploration. Pure functions.

Notation: U users, W length of the longest candidate list, N items, k length of a recommended list. A row of
(U, W) has a user's candidates by falling ranking key; cells without a candidate come last.
"""
