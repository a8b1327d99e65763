"""Reads raw logs: finds the files of a day, decompresses them, and converts lines to typed columns."""
