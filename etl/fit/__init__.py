"""Fits workflows on training days, or extends a workflow by the days that it has not counted yet."""
