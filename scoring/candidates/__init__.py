"""Candidate generation: the items that each user is scored against. One source a file.

`candidates` is an array of indices into candidate_items. It is null if all items except those of `excluded`
are candidates, so that the common case of all items takes a few bytes a user. `sources` holds the number of
the source of each candidate.
"""
