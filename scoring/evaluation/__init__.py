"""Measures predictions, ranked groups and lists against later clicks.

The gate in this package decides whether a new model replaces the model that serves.
"""
