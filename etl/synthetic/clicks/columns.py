"""The columns of the generated log. The docstring of etl.synthetic explains each column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MISSING = -1  # stands for a missing value in any column; in a file, the field is empty


@dataclass(frozen=True)
class GeneratedColumn:
    """A column of the generated log.

    Attributes:
        criteo: name of the column in the layout `criteo`.
        name: name of the column in the layout `named`.
        side: what the column describes: the user, the item, or the context of the impression.
        kind: `key` (an id), `category` (a code in [0, levels)) or `integer` (0 or more).
        levels: number of values of a category; 0 for other kinds.
    """

    criteo: str
    name: str
    side: Literal["user", "item", "context"]
    kind: Literal["key", "category", "integer"]
    levels: int = 0


LABEL, EVENT_TIME = "clicked", "event_time"

FEATURES = (
    GeneratedColumn("I1", "user_days_registered", "user", "integer"),
    GeneratedColumn("I2", "user_visits", "user", "integer"),
    GeneratedColumn("I3", "user_spend_cents", "user", "integer"),
    GeneratedColumn("I4", "user_reviews_written", "user", "integer"),
    GeneratedColumn("I5", "user_age", "user", "integer"),
    GeneratedColumn("I6", "item_price_cents", "item", "integer"),
    GeneratedColumn("I7", "item_reviews", "item", "integer"),
    GeneratedColumn("I8", "item_rating_tenths", "item", "integer"),
    GeneratedColumn("I9", "item_days_listed", "item", "integer"),
    GeneratedColumn("I10", "item_weight_grams", "item", "integer"),
    GeneratedColumn("I11", "page_position", "context", "integer"),
    GeneratedColumn("I12", "session_seconds", "context", "integer"),
    GeneratedColumn("I13", "session_views", "context", "integer"),
    GeneratedColumn("C1", "user_id", "user", "key"),
    GeneratedColumn("C2", "item_id", "item", "key"),
    GeneratedColumn("C3", "user_segment", "user", "category", 12),
    GeneratedColumn("C4", "user_interest", "user", "category", 16),
    GeneratedColumn("C5", "user_age_group", "user", "category", 8),
    GeneratedColumn("C6", "user_household", "user", "category", 6),
    GeneratedColumn("C7", "user_plan", "user", "category", 4),
    GeneratedColumn("C8", "user_region", "user", "category", 12),
    GeneratedColumn("C9", "user_style", "user", "category", 8),
    GeneratedColumn("C10", "user_language", "user", "category", 5),
    GeneratedColumn("C11", "user_channel", "user", "category", 6),
    GeneratedColumn("C12", "item_category", "item", "category", 20),
    GeneratedColumn("C13", "item_theme", "item", "category", 12),
    GeneratedColumn("C14", "item_brand_tier", "item", "category", 6),
    GeneratedColumn("C15", "item_price_band", "item", "category", 8),
    GeneratedColumn("C16", "item_popularity", "item", "category", 10),
    GeneratedColumn("C17", "item_origin", "item", "category", 10),
    GeneratedColumn("C18", "item_colour", "item", "category", 10),
    GeneratedColumn("C19", "item_seller", "item", "category", 8),
    GeneratedColumn("C20", "item_material", "item", "category", 8),
    GeneratedColumn("C21", "hour_bucket", "context", "category", 8),
    GeneratedColumn("C22", "device", "context", "category", 4),
    GeneratedColumn("C23", "referrer", "context", "category", 6),
    GeneratedColumn("C24", "placement", "context", "category", 5),
    GeneratedColumn("C25", "connection", "context", "category", 4),
    GeneratedColumn("C26", "browser", "context", "category", 6),
)

BY_NAME = {column.name: column for column in FEATURES}
KEYS = tuple(column.name for column in FEATURES if column.kind == "key")
INTEGERS = tuple(column.name for column in FEATURES if column.kind == "integer")
CATEGORIES = tuple(column.name for column in FEATURES if column.kind == "category")
