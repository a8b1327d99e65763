"""The source `retrieval`: proposes items by a model with vectors (scoring/candidates/retrieved.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from conf.list_types import ModelSource
from conf.raw_types import PositiveInt

if TYPE_CHECKING:
    from scoring.candidates.source_tables import SourceTables
    from spark.rows import Rows


class Settings(ModelSource):
    """The source `retrieval`: the items whose vectors have the largest dot product with the user's vector.

    The vectors come from a model of the architecture two_tower, sasrec, hstu, bert4rec or mult_vae, or of
    your own architecture with vectors (docs/extending.md). This is the model that ranks the lists, or another
    `model`, which train_retriever trains with the settings of the section `train`.
    """

    n: PositiveInt = Field(default=200, description="Largest number of items of this source for a user.")
    search: Literal["auto", "exact", "approximate"] = Field(
        default="auto",
        description="`exact`: a user's vector is compared with the vectors of all items. `approximate`: the "
        "items are divided into clusters, and the user is compared only with the items of the `probes` "
        "nearest clusters. `auto`: approximate search on a CPU if there are more than 100,000 items, "
        "otherwise exact search.",
    )
    probes: PositiveInt = Field(
        default=64,
        description="Number of clusters that approximate search reads for a user. The number of clusters "
        "is about 2 · √items. With more probes, the search finds more of the nearest items, and takes more "
        "time.",
    )


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns the retrieved items, which the job has already computed."""
    if tables.retrieved is None:
        raise ValueError("internal error, please report: the source `retrieval` has no candidates")
    return tables.retrieved
