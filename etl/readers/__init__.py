"""Readers of raw tables, one file per format. A reader returns typed blocks of rows and rejected rows."""
