"""Elastic training in one rank. When a rank is lost or joins, the ranks form a new ring and continue.

A ring is a group of ranks that train together. Each ring builds the model anew and continues from the last
checkpoint (training/checkpoints/checkpoints.py), which may have been written by another number of ranks.
ranks.py starts the ranks; Horovod's driver starts a rank in place of a lost one.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import horovod.torch as hvd
import torch
from horovod.common.elastic import State
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from training.launch.outcome import Outcome

log = logging.getLogger("nightrank.rank")

# Trains one ring to the end. It calls its argument at each checkpoint, which raises if ranks joined or left.
TrainRing = Callable[[Callable[[], None]], dict[str, object]]


def run_elastic_rank(train: TrainRing, outcome_of: Callable[[Exception], Outcome]) -> Outcome:
    """Trains in one ring after another until the training ends or a rank fails.

    The ranks exchange their outcomes, so that all ranks return the same outcome. If a rank cannot take part
    in this exchange, it ends with its error, and Spark starts another rank.

    Args:
        train: trains in the current ring, and returns the model's description, the content of model.json.
        outcome_of: converts the error of a failed rank to the outcome of this rank.
    """
    return hvd.elastic.run(_train_in_ring)(_Ring(), train, outcome_of)


class _Ring(State):
    """The state that an elastic rank keeps when ranks join or leave: the outcome of a rank that has failed.

    Horovod can save and restore such a state and broadcast it from rank 0. This class does not use these
    functions: every rank loads its state from the last checkpoint instead, because no other rank has the
    table rows of a lost rank.
    """

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.failed: Outcome | None = None

    def save(self) -> None:
        """Does nothing, because checkpoints contain the state."""

    def restore(self) -> None:
        """Does nothing, because checkpoints contain the state."""

    def sync(self) -> None:
        """Does nothing, because checkpoints contain the state."""

    def reset(self) -> None:
        """Frees the model of the broken ring before the next model is built."""
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _train_in_ring(ring: _Ring, train: TrainRing, outcome_of: Callable[[Exception], Outcome]) -> Outcome:
    """Trains until the end, or until the ring changes.

    If the ring changes, this function raises an error, and Horovod forms the next ring.

    If a rank fails, the ring breaks. The rank reports its failure in the next ring, and then all ranks return
    this failure.
    """
    outcomes = hvd.allgather_object(ring.failed, name="failed")
    failures = [outcome for outcome in outcomes if outcome is not None]
    if failures:
        return sorted(failures, key=lambda outcome: outcome.error is None)[0]
    try:
        return Outcome(description=train(ring.check_host_updates))
    except (HorovodInternalError, HostsUpdatedInterrupt) as change:
        log.info("%s; a new ring is formed", str(change) or "ranks joined or left")
        raise
    except Exception as error:
        ring.failed = outcome_of(error)
        raise HorovodInternalError("this rank failed") from error
