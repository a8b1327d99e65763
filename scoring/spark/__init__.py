"""Scoring as Spark jobs: frames of users or rows in, lists or probabilities out."""
