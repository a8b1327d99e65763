"""Prepares the rows of a log without Spark, with the same results as `etl/spark`."""
