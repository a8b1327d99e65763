"""The source `ease`: proposes items that a linear model of items predicts (scoring/candidates/ease.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from conf.list_types import WindowedSource
from conf.raw_types import PositiveInt

if TYPE_CHECKING:
    from scoring.candidates.source_tables import SourceTables
    from spark.rows import Rows


class Settings(WindowedSource):
    """The source `ease`: an item-to-item linear model with a closed-form solution (H. Steck, WWW 2019).

    The model predicts the items of a user from the user's other items. docs/candidates.md has its formula.
    """

    l2: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=500.0,
        description="Weight of the L2 penalty (λ of the publication, which uses 200 to 1000). A larger "
        "value suits logs with more users.",
    )
    max_items: PositiveInt = Field(
        default=20_000,
        description="Maximum number of items with clicks. If more items have clicks, build_candidates ends "
        "with an error. With m items, one worker needs 16·m² bytes of memory, and each worker that makes "
        "lists needs 4·m² bytes.",
    )


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns the items that the source proposes for each user; see `ease_items`."""
    from scoring.candidates.ease import ease_items

    rows = tables.clicks(settings.window_days)
    return ease_items(settings, tables.exclusions, rows, tables.items, tables.vector_store)
