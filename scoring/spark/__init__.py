"""Scoring as Spark jobs: takes frames of users or rows, and returns lists or probabilities."""
