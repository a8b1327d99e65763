"""Reads the results of jobs that reports show. They are in the manifests and run records of the lake."""
