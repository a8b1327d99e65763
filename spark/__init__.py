"""Runs jobs on Spark: the session, Python workers, accelerator settings, error logs and event logs."""
