"""Prepares the rows of a day without Spark: histories, negatives, joins, positions, row operators."""
