"""Columns of rows on a device such as a GPU. Torch operators scan text and look up features on the device.

Only tasks of build_features with a GPU need torch, so `columns.py` imports torch inside functions.
"""

from conf.process import limit_spinning

limit_spinning()
