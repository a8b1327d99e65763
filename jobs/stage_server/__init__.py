"""The process that runs all stages of a run, one after the other. `nightly` starts it."""
