"""The stages of a run. Each file has a function `run(context) -> JobSummary`, for jobs and notebooks."""
