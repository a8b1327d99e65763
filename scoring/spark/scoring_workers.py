"""Modules that the worker daemon imports before it forks scoring workers. Importing torch takes seconds."""

# All scoring uses this one constant, so that Spark forks all scoring workers from one process.
SCORING_IMPORTS = ("scoring.candidates.nearest_items", "scoring.ranking.recommender", "scoring.rows.task")
