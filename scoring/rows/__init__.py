"""Probabilities of feature rows: which task reads which, how they are read, scored and written."""
