"""Business rules that change a ranking. Each file of `plugins` defines one rule.

Notation: U is the number of users, W the length of the longest candidate list, N the number of items, and k
the length of a recommended list. A row of a (U, W) matrix has the candidates of one user in descending order
of the ranking key. Cells without a candidate come last.
"""
