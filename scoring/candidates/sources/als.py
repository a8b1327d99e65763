"""The source `als`: proposes items by a matrix factorization of the clicks (scoring/candidates/als.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from conf.list_types import WindowedSource
from conf.raw_types import PositiveInt, Seed

if TYPE_CHECKING:
    from scoring.candidates.source_tables import SourceTables
    from spark.rows import Rows


class Settings(WindowedSource):
    """The source `als`: a matrix factorization of the clicks by alternating least squares.

    The factors are those of Spark MLlib for implicit feedback (Y. Hu, Y. Koren, C. Volinsky, ICDM 2008).
    """

    rank: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=32, description="Number of factors: length of the vectors of users and items."
    )
    iterations: PositiveInt = Field(
        default=10,
        description="Number of iterations. Each iteration computes the user vectors, then the item vectors.",
    )
    regularization: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=0.1,
        description="Weight of the L2 penalty. MLlib multiplies it by the user's number of clicked items, "
        "or by the number of users who clicked the item.",
    )
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=10.0,
        description="Growth of the confidence per click: c clicks of a user on an item have the confidence "
        "1 + alpha · c. Without clicks, the confidence is 1.",
    )
    seed: Seed = Field(default=0, description="Seed of the initial vectors.")


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns the items that the source proposes for each user; see `als_items`."""
    from scoring.candidates.als import als_items

    rows = tables.clicks(settings.window_days)
    return als_items(settings, tables.exclusions, rows, tables.items, tables.vector_store)
