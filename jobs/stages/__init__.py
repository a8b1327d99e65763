"""The stages of a run: one function `run(context) -> JobSummary` a file, for jobs, tests and notebooks."""
