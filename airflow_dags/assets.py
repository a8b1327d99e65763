"""Airflow assets that the DAGs update: a new champion, and the lists of a day."""

from __future__ import annotations

from airflow.sdk import Asset

# weekly_training updates it when the gate promotes a model. daily_recommendations reads the day of the
# promotion from it.
CHAMPION = Asset("nightrank_champion", group="nightrank")
# daily_recommendations updates it when a day's lists are published and checked. Your own DAGs may be
# scheduled on it.
RECOMMENDATIONS = Asset("nightrank_recommendations", group="nightrank")
