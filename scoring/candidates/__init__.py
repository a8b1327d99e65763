"""Candidate generation: the items that each user is scored against. One source per file.

`candidates` is an array of indices into candidate_items. A null array means that all items except those in
`excluded` are candidates, so that this common case takes only a few bytes per user. `sources` has, for each
candidate, the number of the source that proposed it.
"""
