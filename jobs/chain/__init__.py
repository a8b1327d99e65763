"""Runs the stages of a run date, in separate processes or in one Spark application.

The jobs nightly, demo and plan_night use this package.
"""
