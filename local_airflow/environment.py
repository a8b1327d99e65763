"""The Python environment of Airflow.

Airflow starts jobs as separate processes, so this environment shares no packages with the jobs. It takes 840
MB of disk. It is created in the cache folder when it is first needed, from the file requirements/airflow.txt.
"""

from __future__ import annotations

from pathlib import Path

from setup.locked_environment import locked_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/airflow.txt"
CHECK = "import airflow.providers.apache.spark.hooks.spark_submit"


def environment() -> Path:
    """Returns the folder of Airflow's environment, and creates it if necessary.

    The environment is created if it is missing or if the lock file has changed since it was made.

    Raises:
        SetupError: the environment cannot be created.
    """
    return locked_environment("airflow", LOCK, CHECK)
