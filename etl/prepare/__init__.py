"""Prepares the rows of a day without Spark: a task has all rows of some users, as an Arrow table."""
