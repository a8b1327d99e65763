"""Processes the days of a text log in two passes, in Python workers that read the raw files themselves.

Each task reads one file split, which is a byte range of a file.
"""
