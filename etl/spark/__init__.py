"""Reads and prepares raw rows as Spark frames, and publishes the latest features of users and items."""
