"""The typed configuration and the errors of jobs. It imports no other folder, no pyspark and no torch."""
