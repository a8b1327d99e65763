"""What the DAGs tell each other and the rest of the installation: a new champion, and a day's lists."""

from __future__ import annotations

from airflow.sdk import Asset

# Updated by weekly_training when the gate promotes; daily_recommendations names it beside the lists it scores.
CHAMPION = Asset("nightrank_champion", group="nightrank")
# Updated by daily_recommendations when a day's lists are published and checked; others may be scheduled on it.
RECOMMENDATIONS = Asset("nightrank_recommendations", group="nightrank")
