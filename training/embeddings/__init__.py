"""Embedding tables: ids in, vectors out, gradients by row. Only this folder knows where a row is stored."""
