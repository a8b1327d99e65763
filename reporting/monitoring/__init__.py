"""Monitoring of runs: the run record, metrics for Prometheus, and statistics of Spark's stages."""
