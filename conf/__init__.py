"""The typed configuration and the errors of jobs.

This package imports no other folder, no pyspark and no torch.
"""
