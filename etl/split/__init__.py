"""Divides rows into train, validation and test, and draws negatives for them."""
