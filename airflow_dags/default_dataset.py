"""The DAG file of the dataset that the Airflow Variable `nightrank` configures.

To change the schedules or limits of this dataset, create the file `nightrank_default.py` beside the folder
airflow_dags (docs/airflow.md). That file then creates the DAGs, and this file creates none.
"""

from __future__ import annotations

from pathlib import Path

from airflow_dags.create_dags import create_dags
from airflow_dags.dataset import DEFAULT_DATASET

if not (Path(__file__).parent.parent / "nightrank_default.py").exists():
    create_dags(DEFAULT_DATASET)
