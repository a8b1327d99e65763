"""Infers the format, the types and the meaning of columns from the first rows of raw files."""
