"""Erases users from a lake: finds their rows, rewrites the partitions, and keeps digests consistent."""
