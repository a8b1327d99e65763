"""Generates the log of single impressions: users, items, clicks, the layouts of rows, and malformed rows."""
