"""Runs scoring in Spark or in this process: computes lists of users, and probabilities of rows."""
