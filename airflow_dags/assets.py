"""Airflow assets that the DAGs update: a new champion, and the lists of a day."""

from __future__ import annotations

from airflow.sdk import Asset

from airflow_dags.dataset import Dataset


def champion(dataset: Dataset) -> Asset:
    """Returns the asset that weekly_training updates when the gate promotes a model.

    daily_recommendations reads the day of the promotion from this asset.
    """
    return Asset(dataset.id_of("nightrank_champion"), group="nightrank")


def recommendations(dataset: Dataset) -> Asset:
    """Returns the asset that daily_recommendations updates when the lists of a day are published and checked.

    To run your own DAG after each update of this asset, give it a PartitionedAssetTimetable. The events of
    scheduled runs have partition keys, and for such an event Airflow starts only DAGs with this timetable.
    """
    return Asset(dataset.id_of("nightrank_recommendations"), group="nightrank")
