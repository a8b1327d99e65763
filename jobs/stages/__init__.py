"""The stages of a run: one function `run(context) -> JobSummary` a file, which jobs, tests and notebooks call."""
