"""Fits workflows on training days, or extends one by the days it has not counted."""
