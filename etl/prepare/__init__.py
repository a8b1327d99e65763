"""Prepares the rows of a day as Arrow tables: histories and what else a configuration adds to the rows."""
