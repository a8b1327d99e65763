"""Measures predictions, ranked groups and lists by later clicks; the gate for challengers."""
