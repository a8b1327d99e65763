"""Airflow assets that the DAGs update: a new champion, and the lists of a day."""

from __future__ import annotations

from airflow.sdk import Asset

# weekly_training updates this asset when the gate promotes a model. daily_recommendations reads the day of
# the promotion from the asset.
CHAMPION = Asset("nightrank_champion", group="nightrank")
# daily_recommendations updates this asset when the lists of a day are published and checked. You can schedule
# your own DAGs on this asset.
RECOMMENDATIONS = Asset("nightrank_recommendations", group="nightrank")
