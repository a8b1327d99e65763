"""Prepares a day's rows without Spark: adds histories, negatives, attributes, positions and new columns."""
