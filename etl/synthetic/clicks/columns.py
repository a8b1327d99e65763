"""The columns of the generated log. The docstring of etl.synthetic explains each column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MISSING = -1  # a missing value of any column; an empty field in a file


@dataclass(frozen=True)
class Column:
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
    Column("I1", "user_days_registered", "user", "integer"),
    Column("I2", "user_visits", "user", "integer"),
    Column("I3", "user_spend_cents", "user", "integer"),
    Column("I4", "user_reviews_written", "user", "integer"),
    Column("I5", "user_age", "user", "integer"),
    Column("I6", "item_price_cents", "item", "integer"),
    Column("I7", "item_reviews", "item", "integer"),
    Column("I8", "item_rating_tenths", "item", "integer"),
    Column("I9", "item_days_listed", "item", "integer"),
    Column("I10", "item_weight_grams", "item", "integer"),
    Column("I11", "page_position", "context", "integer"),
    Column("I12", "session_seconds", "context", "integer"),
    Column("I13", "session_views", "context", "integer"),
    Column("C1", "user_id", "user", "key"),
    Column("C2", "item_id", "item", "key"),
    Column("C3", "user_segment", "user", "category", 12),
    Column("C4", "user_interest", "user", "category", 16),
    Column("C5", "user_age_group", "user", "category", 8),
    Column("C6", "user_household", "user", "category", 6),
    Column("C7", "user_plan", "user", "category", 4),
    Column("C8", "user_region", "user", "category", 12),
    Column("C9", "user_style", "user", "category", 8),
    Column("C10", "user_language", "user", "category", 5),
    Column("C11", "user_channel", "user", "category", 6),
    Column("C12", "item_category", "item", "category", 20),
    Column("C13", "item_theme", "item", "category", 12),
    Column("C14", "item_brand_tier", "item", "category", 6),
    Column("C15", "item_price_band", "item", "category", 8),
    Column("C16", "item_popularity", "item", "category", 10),
    Column("C17", "item_origin", "item", "category", 10),
    Column("C18", "item_colour", "item", "category", 10),
    Column("C19", "item_seller", "item", "category", 8),
    Column("C20", "item_material", "item", "category", 8),
    Column("C21", "hour_bucket", "context", "category", 8),
    Column("C22", "device", "context", "category", 4),
    Column("C23", "referrer", "context", "category", 6),
    Column("C24", "placement", "context", "category", 5),
    Column("C25", "connection", "context", "category", 4),
    Column("C26", "browser", "context", "category", 6),
)

BY_NAME = {column.name: column for column in FEATURES}
KEYS = tuple(column.name for column in FEATURES if column.kind == "key")
INTEGERS = tuple(column.name for column in FEATURES if column.kind == "integer")
CATEGORIES = tuple(column.name for column in FEATURES if column.kind == "category")
