"""Runs the stages of a run date, each as a separate process. Used by nightly, demo and plan_night."""
