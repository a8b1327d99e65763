"""How the tables of a model are kept: their storage, and the ranks that hold them. Models ask for tables here, knowing nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from conf.train_types import Embeddings, EmbeddingStorage
from training.distributed.collectives import ALONE, Collectives
from training.embeddings.planner import TableShape, describe, plan_placement
from training.embeddings.row_storage import DTYPES
from training.embeddings.table import StackedEmbedding

log = logging.getLogger("nightrank.training")

# Bytes of state that each optimiser keeps of a row, and of each of its numbers.
_STATE_BYTES = {"row_wise_adagrad": (4, 0), "sgd": (0, 0), "lazy_adam": (4, 8), "ftrl": (0, 8)}


@dataclass(frozen=True)
class Keeping:
    """As the configuration has it; by default, everything here in 32 bits."""

    storage: EmbeddingStorage = "fp32"
    settings: Embeddings = field(default_factory=Embeddings)
    collectives: Collectives = ALONE

    def table(
        self,
        cardinalities: Sequence[int],
        dim: int,
        list_lengths: Sequence[int],
        pooling: Literal["sum", "mean"],
        names: Sequence[str],
        *,
        by_ftrl: bool,
    ) -> StackedEmbedding:
        """A table of `dim` numbers a row; rank 0 logs which rank holds what. Tables of one number a row are float32.

        Raises:
            ConfigError: a rank's part is larger than it may be.
        """
        storage = DTYPES[self.storage] if dim > 1 else torch.float32
        a_row, a_number = _STATE_BYTES["ftrl" if by_ftrl else self.settings.optimizer]
        row_bytes = a_row + dim * (storage.itemsize + a_number)
        single = len(cardinalities) - len(list_lengths)
        shape = TableShape(tuple(cardinalities), row_bytes, (*[1] * single, *list_lengths))
        ranks = self.collectives.size
        placement = plan_placement(shape, ranks, self.settings)
        if ranks > 1 and self.collectives.rank == 0:
            called = names or [str(each) for each in range(len(cardinalities))]
            log.info("embedding table, %d numbers a row:\n%s", dim, describe(placement, shape, called))
        return StackedEmbedding(
            cardinalities, dim, list_lengths, pooling, storage, placement, self.collectives
        )
