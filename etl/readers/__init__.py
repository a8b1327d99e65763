"""Readers of raw tables: one file per format. A reader gives typed blocks of rows, and the rejected rows."""
