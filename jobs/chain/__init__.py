"""The stages of a run date, each run as a separate process. nightly, demo and plan_night use this package."""
