"""Retrieval: which items each user is scored against, as indices into candidate_items. One source a file.

`candidates` is an array of item indices, null where every item but those of `excluded` is one. So the common case of all
items costs a few bytes a user, not a list of the catalogue. `sources` says of each place which source gave it.
"""
