"""Modules that workers which score import before their fork, because torch takes seconds to import."""

# One constant for all scoring, so that Spark forks all these workers from one process.
SCORING_IMPORTS = ("scoring.candidates.vectors", "scoring.ranking.recommender", "scoring.rows.task")
