"""Looks at the first rows of raw files, and infers their format, the types of columns and what they mean."""
