"""Compares predictions, ranked groups of rows and lists with the clicks that followed them.

The gate in this package decides whether a new model replaces the model that serves.
"""
