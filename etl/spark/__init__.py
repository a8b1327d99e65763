"""Spark frames of raw rows: reading, quarantine, preparation, and latest features of users and items."""
