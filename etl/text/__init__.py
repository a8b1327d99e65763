"""Processes days of text in two passes. Python workers open the raw files; a task reads one file split."""
