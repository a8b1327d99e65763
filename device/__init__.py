"""Columns of rows on a device: text that torch's operators scan there, and features that they look up there.

Only the tasks of build_features that have a GPU import torch, so `columns.py` imports it when it is used.
"""

from conf.process import limit_spinning

limit_spinning()
