"""Runs scoring as Spark jobs: computes lists from frames of users, and probabilities from frames of rows."""
