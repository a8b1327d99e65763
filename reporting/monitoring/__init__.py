"""Monitoring of runs: the run record, metrics for Prometheus, and the work of Spark's stages."""
