"""Chooses which table rows of a model are on the devices: the setting `train.embedding_memory`."""

from __future__ import annotations

import logging
from typing import assert_never

import torch

from conf.errors import ConfigError
from conf.types import ModelConfig, Train
from storage.feature_spec import FeatureSpec
from storage.id_counts import IdCounts
from training.checkpoints.rank_agreement import gather_json, raise_on_all_ranks
from training.distributed.collectives import Collectives
from training.embeddings.tiers import Tiers, choose_tiers, describe_tiers
from training.models import planned_tables

log = logging.getLogger("nightrank.training")

# The share of a GPU's free memory that rows may take, if the setting is not set. The rest is for the dense
# layers, for the vectors of a batch, and for their gradients.
_SHARE_OF_FREE_MEMORY = 0.75


def plan_tiers(
    model: ModelConfig,
    spec: FeatureSpec,
    train: Train,
    counts: IdCounts,
    collectives: Collectives,
    device: torch.device,
) -> Tiers | None:
    """Returns which rows of a model's tables are hot; None if all rows are on the devices.

    All ranks must call this function, and get the same result. Rank 0 logs it.

    Args:
        model: the configuration of the model.
        spec: the features.
        train: the section `train`.
        counts: where the counts of ids are.
        collectives: the collectives of this rank.
        device: the device of this rank.

    Raises:
        ConfigError: the device is a CPU, and `train.embedding_memory_mib` is not set.
        DataError: the counts cannot be read.
    """
    if train.embedding_memory == "device":
        return None
    if train.embedding_memory != "auto":
        assert_never(train.embedding_memory)
    rank_bytes, problem = _rank_bytes(train, device)
    raise_on_all_ranks(collectives, problem)
    rank_bytes = min(gather_json(collectives, rank_bytes))
    tables = planned_tables(model, spec, train.embeddings, collectives)
    tiers = choose_tiers(tables, counts.read(), rank_bytes, pinned=device.type == "cuda")
    if collectives.rank == 0:
        held = max(sum(table.bytes_of(rank) for table in tables) for rank in range(collectives.size))
        if tiers is None:
            log.info("all embedding rows are on the device: %d of at most %d bytes", held, rank_bytes)
        else:
            log.info(
                "embedding rows in two memories: at most %d of %d bytes of a rank on the device, "
                "for %.2f%% of the lookups by the value counts\n%s",
                rank_bytes,
                held,
                100 * tiers.expected,
                describe_tiers(tables, tiers),
            )
    return tiers


def _rank_bytes(train: Train, device: torch.device) -> tuple[int, ConfigError | None]:
    """Returns how many bytes of rows this rank's device may hold, or an error."""
    if train.embedding_memory_mib is not None:
        return train.embedding_memory_mib << 20, None
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_FREE_MEMORY), None
    return 0, ConfigError(
        "train.embedding_memory=auto on a CPU needs a number of bytes: a CPU has no memory of its own",
        "set train.embedding_memory_mib, or train.embedding_memory=device",
    )
