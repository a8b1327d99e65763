"""Divides rows into the splits train, validation and test, and draws negatives for the rows."""
