"""Measures predictions, ranked groups and lists against later clicks. The gate decides on challengers."""
