"""Embedding tables: they map ids to vectors and sum gradients by row.

Only the modules of this folder depend on where a row is stored.
"""
