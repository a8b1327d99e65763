"""The typed configuration and the errors of jobs. It imports no other folder, neither pyspark nor torch."""
