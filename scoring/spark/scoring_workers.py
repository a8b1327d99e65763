"""Names the modules that the worker daemon imports before it forks scoring workers.

Importing torch takes seconds, so the daemon imports it once for all workers.
"""

# All scoring uses this one constant, so that Spark forks all scoring workers from one process.
SCORING_IMPORTS = (
    "scoring.candidates.item_vectors",
    "scoring.candidates.retrieval",
    "scoring.ranking.recommender",
    "scoring.rows.task",
)
