"""Delivers lists to sinks outside the lake: JSON lines, or a PostgreSQL table.

The package also checks the limits of changes; lists that exceed a limit are not published.
"""
