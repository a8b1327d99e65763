"""Embedding tables: ids in, vectors out, gradients by row. Nothing outside this folder knows where a row lies."""
