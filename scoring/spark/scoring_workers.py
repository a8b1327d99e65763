"""Names the modules that the worker daemon imports before it forks scoring workers.

Importing torch takes seconds, so the daemon imports it once for all workers.
"""

from __future__ import annotations

from spark.workers import slot_of_task

# All scoring uses this one constant, so that Spark forks all scoring workers from one process.
SCORING_IMPORTS = (
    "scoring.candidates.item_vectors",
    "scoring.candidates.retrieval",
    "scoring.ranking.recommender",
    "scoring.rows.task",
)


# Determines the GPU and the number of CPU threads that Spark assigned to a scoring task.


def task_slot() -> tuple[int | None, int]:
    """Returns the index of the GPU and the number of CPU threads that Spark assigned to the running task.

    The index is None if the task has no GPU. Outside of Spark, several threads of the process of a job score
    at the same time (score_frames.py), and each of them uses one CPU thread.
    """
    return slot_of_task() or (None, 1)
