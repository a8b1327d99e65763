"""Fits workflows on training days, or adds values of new days to the vocabularies of an existing workflow."""
