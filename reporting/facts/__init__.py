"""Reads results of jobs from the manifests and run records of the lake, for the reports."""
