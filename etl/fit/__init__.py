"""Fits workflows on training days, or extends the vocabularies of a workflow by the values of new days."""
