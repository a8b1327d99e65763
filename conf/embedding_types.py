"""The typed configuration of the training and placement of embedding tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conf.raw_types import PositiveLong, Strict


class Embeddings(Strict):
    """Settings that decide how embedding tables are trained, and which rank holds which rows.

    Placement does not change results, except for rounding.

    With `placement: auto`, every rank holds all tables of at most `replicated_max_bytes`. Let b be the total
    number of bytes of all larger tables, divided by the number of ranks. If a table has more than
    `row_wise_share` × b bytes, its rows are distributed over all ranks. If a rank would still hold more than
    `rank_max_bytes`, the rows of further tables are distributed too, the largest table first. Each other
    table is on one rank. The bytes of a table include the state of its optimizer.
    """

    optimizer: Literal["row_wise_adagrad", "sgd", "lazy_adam"] = Field(
        default="row_wise_adagrad",
        description="Optimizer of table rows, with the learning rate `train.embedding_learning_rate`. "
        "`row_wise_adagrad`: Adagrad with one accumulator per row. `sgd`: stochastic gradient descent, "
        "without state. `lazy_adam`: Adam, in which a step changes only the rows that it looked up. The "
        "optimizer does not apply to weights that a model trains with FTRL.",
    )
    placement: Literal["auto", "replicated", "table_wise", "row_wise"] = Field(
        default="auto",
        description="`replicated`: every rank holds every table. `table_wise`: each table is on one rank. "
        "`row_wise`: the rows of each table are distributed over all ranks. `auto` decides for each "
        "feature. A single rank holds all tables.",
    )
    replicated_max_bytes: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=4 * 2**20,
        description="Largest size, in bytes, of a table that every rank holds (placement=auto).",
    )
    row_wise_share: Annotated[float, Field(gt=0)] = Field(
        default=0.5,
        description="The rows of a table are distributed over all ranks if its bytes exceed this share of "
        "the average bytes per rank of all tables that are not replicated (placement=auto).",
    )
    rank_max_bytes: PositiveLong | None = Field(
        default=None,
        description="Largest number of bytes of embedding tables on a rank. If the tables do not fit, the "
        "job fails. Null: no limit.",
    )
