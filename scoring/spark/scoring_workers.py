"""The modules that Python workers which score import before their fork. To import torch takes seconds of a core."""

# One constant for all scoring, so that Spark forks all these workers from one process.
SCORING_IMPORTS = ("scoring.candidates.vectors", "scoring.ranking.recommender", "scoring.rows.task")
