"""Columns of rows on a device: torch operators scan text and look up features there.

Only tasks of build_features that have a GPU need torch, so `columns.py` imports torch inside functions.
"""

from conf.process import limit_spinning

limit_spinning()
