"""The chain of stages for a run date, each a process of its own: shared by nightly, demo and plan_night."""
