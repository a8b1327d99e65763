"""Writes a configuration for a log that nobody has described: the job `init`."""
