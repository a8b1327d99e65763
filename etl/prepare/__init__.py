"""Prepares a day's rows for features: adds histories, negatives, attributes, positions and new columns."""
