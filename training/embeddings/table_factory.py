"""Creates a model's embedding tables, with the storage and the placement from the configuration."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from conf.train_types import Embeddings, EmbeddingStorage
from training.collectives import ALONE, Collectives
from training.embeddings.held_rows import DTYPES
from training.embeddings.lookup import Pooling
from training.embeddings.placement import PlannedTable, TableShape, Tiers, describe, plan_placement
from training.embeddings.scoring_tables import RowsOnDemand
from training.embeddings.table import StackedEmbedding

log = logging.getLogger("nightrank.training")

# Bytes of each optimizer's state: the bytes per row, and the additional bytes for each number of a row.
_STATE_BYTES = {"row_wise_adagrad": (4, 0), "sgd": (0, 0), "lazy_adam": (4, 8), "ftrl": (0, 8)}


@dataclass(frozen=True)
class TableFactory:
    """Creates embedding tables. By default, this process holds all rows, as 32-bit numbers.

    Attributes:
        storage: the number format in which rows are stored.
        settings: the section `train.embeddings`, which configures the placement and the optimizer of the
            rows.
        collectives: the collectives of the ranks that hold the rows.
        on_demand: whether rows stay in the model's files until a lookup needs them.
        tiers: which rows are in host memory; None if all are on the device.
        planned: the tables that were created so far.
    """

    storage: EmbeddingStorage = "fp32"
    settings: Embeddings = field(default_factory=Embeddings)
    collectives: Collectives = ALONE
    on_demand: bool = False
    tiers: Tiers | None = None
    planned: list[PlannedTable] = field(default_factory=list)

    def table(
        self,
        cardinalities: Sequence[int],
        dim: int,
        list_lengths: Sequence[int],
        pooling: Pooling,
        names: Sequence[str],
        *,
        by_ftrl: bool,
    ) -> StackedEmbedding:
        """Creates a table with `dim` numbers per row. Rank 0 logs the placement.

        Tables with one number per row are always float32.

        Args:
            cardinalities, dim, list_lengths, pooling: see `StackedEmbedding`.
            names: names of the features, for the log.
            by_ftrl: whether FTRL trains the table. The number of bytes per row depends on the optimizer.

        Raises:
            ConfigError: a rank would hold more bytes of the table than `rank_max_bytes`.
        """
        storage = DTYPES[self.storage] if dim > 1 else torch.float32
        state_bytes, number_state_bytes = _STATE_BYTES["ftrl" if by_ftrl else self.settings.optimizer]
        row_bytes = state_bytes + dim * (storage.itemsize + number_state_bytes)
        num_single = len(cardinalities) - len(list_lengths)
        shape = TableShape(tuple(cardinalities), row_bytes, (*[1] * num_single, *list_lengths))
        ranks = self.collectives.size
        placement = plan_placement(shape, ranks, self.settings)
        labels = names or [str(index) for index in range(len(cardinalities))]
        number = len(self.planned)
        self.planned.append(PlannedTable(placement, row_bytes, shape.lookups, tuple(labels)))
        if self.on_demand:
            return RowsOnDemand(cardinalities, dim, list_lengths, pooling, storage)
        if ranks > 1 and self.collectives.rank == 0:
            log.info("embedding table, %d numbers per row:\n%s", dim, describe(placement, shape, labels))
        pinned = False
        if self.tiers is not None and self.tiers.hot[number] != placement.cardinalities:
            placement, pinned = replace(placement, hot=self.tiers.hot[number]), self.tiers.pinned
        return StackedEmbedding(
            cardinalities,
            dim,
            list_lengths,
            pooling,
            storage,
            placement,
            self.collectives,
            pinned=pinned,
        )
