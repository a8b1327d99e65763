"""Monitoring of runs: the run record, Prometheus metrics, Spark's stages."""
