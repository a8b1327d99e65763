"""Runs the stages of a run date, each as a separate process.

The jobs nightly, demo and plan_night use this package.
"""
