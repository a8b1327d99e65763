"""Modules that scoring workers import before they fork, because importing torch takes seconds."""

# All scoring uses this one constant, so that Spark forks all scoring workers from one process.
SCORING_IMPORTS = ("scoring.candidates.nearest_items", "scoring.ranking.recommender", "scoring.rows.task")
