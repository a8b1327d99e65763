"""Limits that hold lists back, and delivery to sinks outside the lake: JSON lines and a PostgreSQL table."""
