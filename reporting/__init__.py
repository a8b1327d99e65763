"""Presents runs: the HTML report, terminal output, monitoring, and the list of one user."""
