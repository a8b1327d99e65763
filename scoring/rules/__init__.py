"""Business rules that change a ranking: boost, maximum per category, exploration. One rule per file.

Notation: U users, W length of the longest candidate list, N items, k length of a recommended list. A row of a
(U, W) matrix has one user's candidates by descending ranking key. Cells without a candidate come last.
"""
