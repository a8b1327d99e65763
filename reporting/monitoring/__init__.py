"""What a run leaves for those who watch: a row of `runs`, Prometheus metrics, Spark's event log."""
