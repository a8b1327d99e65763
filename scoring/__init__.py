"""Batch scoring: chooses candidates, scores (user, item) pairs, makes top-k lists, and scores rows.

The package also measures the quality of predictions and lists.

Notation in docstrings: P is the number of pairs (or rows) that are scored together. D is the number of dense
features, C the number of categorical features, U the number of users, and N the number of items. W is the
length of the longest candidate list among users who are scored together.
"""

from conf.process import limit_spinning

limit_spinning()
