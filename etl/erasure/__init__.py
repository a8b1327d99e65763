"""Erases users from a lake: finds their rows, rewrites the partitions, keeps digests consistent."""
