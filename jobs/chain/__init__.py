"""The chain of stages for a run date; each stage is a separate process. nightly, demo and plan_night use it."""
