"""Creates the three DAGs of a dataset.

Call `create_dags` in a DAG file of the dataset, beside the folder airflow_dags. Each dataset needs a separate
file. If a file has an import error, Airflow schedules none of its DAGs. So an error in one dataset would stop
the DAGs of all datasets in the same file.
"""

from __future__ import annotations

from airflow_dags.backfill_recommendations import create_backfill
from airflow_dags.daily_recommendations import create_daily
from airflow_dags.dataset import Dataset
from airflow_dags.weekly_training import create_weekly


def create_dags(dataset: Dataset) -> None:
    """Creates the DAGs of a dataset. Airflow registers them for the DAG file that is being parsed."""
    create_daily(dataset)
    create_weekly(dataset)
    create_backfill(dataset)
