"""Processes the days of a log in two passes: the scan pass and the encode pass.

The tasks of both passes run in Python workers, which read the raw files. Each task reads one file split,
which is a part of a file (etl/readers).
"""
