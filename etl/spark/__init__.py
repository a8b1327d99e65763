"""Reads and prepares raw rows as Spark frames."""
