"""Delivers lists to sinks outside the lake, such as JSON lines or a PostgreSQL table.

The package also compares new lists with the last published lists. Lists that exceed a limit are not
published.
"""
