"""Processes the days of a log in two passes, in Python workers that read the raw files themselves.

Each task reads one file split, which is a part of a file (etl.readers).
"""
