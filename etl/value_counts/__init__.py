"""The value counts of each day, and statistics that are computed from these counts instead of rows."""
