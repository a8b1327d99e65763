"""Candidate generation: chooses the items that are scored for each user. Each source has one file.

The result has one row per user. Its column `candidates` is an array of indices into the table
candidate_items. A null array means that all items except the items in `excluded` are candidates. This case is
common, and the null array takes only a few bytes per user. The column `sources` has one element per
candidate: the index of the source that proposed the candidate.
"""
