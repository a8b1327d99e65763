"""Candidate generation: the items that each user is scored against. One source per file.

The result has one row per user. Its column `candidates` is an array of indices into the table
candidate_items. A null array means that all items except those in `excluded` are candidates; this common case
then takes only a few bytes per user. `sources` has, for each candidate, the index of the source that proposed
it.
"""
