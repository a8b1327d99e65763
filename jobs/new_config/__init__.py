"""Writes a configuration for a log without one: the job `init`."""
