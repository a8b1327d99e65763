"""Probabilities of feature rows: file splits of tasks, reading, scoring, writing."""
