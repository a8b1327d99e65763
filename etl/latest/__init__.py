"""Finds the latest features and histories of users and items.

The job that scores lists of recommendations reads these tables.
"""
