"""Fits workflows on training days, or adds the values of new days to the vocabularies of a workflow."""
