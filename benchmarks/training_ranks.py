"""Measures training on ranks: loader, training step and Horovod, with the time of collectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import horovod.spark
import horovod.torch as hvd
import torch
from pyspark.sql import SparkSession

from benchmarks.criteo_shapes import spec_of
from benchmarks.training_files import full_batches
from conf.process import keep_freed_memory
from conf.types import ModelConfig, Reading, Train
from training.collectives import ALONE
from training.data.batch import Batch
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.data.sharding import DataFile, plan_shards, shards_of_rank
from training.launch.rank_main import HorovodCollectives
from training.loop.train_step import Trainer
from training.models import build_model

ROOT = Path(__file__).resolve().parent.parent
# How much may be read ahead. These batches are consumed before timing starts, so that the loader's speed counts.
_READ_AHEAD_MIB = 8
_READ_AHEAD = 10
_EPOCHS = 10_000  # more than any measurement consumes


@dataclass(frozen=True)
class Measurement:
    """The measurement that each rank makes.

    In each turn, a rank runs `steps` steps on batches in memory, and then `steps` steps on batches from the
    loader.

    Attributes:
        model: configuration of the model.
        train: training settings.
        cardinalities: cardinality of each categorical feature.
        files: feature files.
        threads: number of threads of a rank.
        steps: number of steps in a turn.
        turns: number of turns.
        independent: whether each rank trains a model of its own, with its share of the global batch, without
            collectives. This is the most that ranks on the same cores can reach.
    """

    model: ModelConfig
    train: Train
    cardinalities: Sequence[int]
    files: Sequence[DataFile]
    threads: int
    steps: int
    turns: int
    independent: bool = False


class TimedCollectives:
    """A wrapper of the collectives of a rank, which adds up the seconds of all calls and the bytes they send.

    The seconds are those in which the rank waits for a result, and thus for other ranks. The bytes are those that a rank must
    send to others: in an all-reduce, 2 (R - 1) / R of the tensor (Patarasuk and Yuan 2009, J. Parallel and
    Distributed Computing 69); in an all-gather, the tensor to each other rank; in an all-to-all, the rows that
    are not for this rank.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._seconds = self._reduced_bytes = self._exchanged_bytes = 0.0

    def take(self) -> tuple[float, float, float]:
        """Returns and clears the seconds, the bytes of all-reduces, and those of the other collectives."""
        taken = self._seconds, self._reduced_bytes, self._exchanged_bytes
        self._seconds = self._reduced_bytes = self._exchanged_bytes = 0.0
        return taken

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        return self._timed(name, attribute) if callable(attribute) else attribute

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            self._count(name, arguments)
            began = time.perf_counter()
            try:
                result = call(*arguments, **named)
            finally:
                self._seconds += time.perf_counter() - began
            return self._timed("wait", result) if callable(result) else result

        return timed

    def _count(self, name: str, arguments: Sequence[Any]) -> None:
        ranks = self._inner.size
        if name.endswith("allreduce_sum"):
            self._reduced_bytes += 2 * (ranks - 1) / ranks * arguments[0].nbytes
        elif name == "allgather":
            self._exchanged_bytes += (ranks - 1) * sum(tensor.nbytes for tensor in arguments)
        elif name.endswith("all_to_all"):
            values, splits, *_ = arguments
            others = sum(splits) - splits[self._inner.rank]
            self._exchanged_bytes += others * values[:1].nbytes if len(values) else 0


def measure_on_ranks(spark: SparkSession, measurement: Measurement) -> dict[str, Any]:
    """Runs the measurement on all ranks and returns the figures of rank 0."""
    ranks = measurement.train.num_ranks
    results: list[dict[str, Any]] = horovod.spark.run(
        run_rank, args=(measurement,), num_proc=ranks, use_gloo=True, env={"PYTHONPATH": str(ROOT)}, verbose=0
    )
    return results[0]


def run_rank(measurement: Measurement) -> dict[str, Any]:
    """Runs the measurement in the process of a rank.

    Returns:
        `step` and `end_to_end` are samples per second of all ranks, each the median over turns. `step`
        uses batches in memory, and `end_to_end` uses batches from the loader. `reduced_bytes` and
        `exchanged_bytes` are those of `TimedCollectives` for each sample of this rank. `communication_share` is the
        share of the time of `step` that is spent in collectives. `loader_wait_share` is the share of the time
        of `end_to_end` in which the rank waits for the loader.
    """
    torch.set_num_threads(measurement.threads)
    hvd.init()
    try:
        return _measure(measurement)
    finally:
        hvd.shutdown()


def seconds_of(trainer: Trainer, batches: Iterable[Batch]) -> float:
    """Returns the seconds of one step for each batch. Each step also gets the next batch, as in a training run."""
    began = time.perf_counter()
    last = None
    for batch in batches:
        if last is not None:
            trainer.step(last, 1.0, next_batch=batch)
        last = batch
    if last is not None:
        trainer.step(last, 1.0)
    return time.perf_counter() - began


def _measure(measurement: Measurement) -> dict[str, Any]:
    train, steps, ranks = measurement.train, measurement.steps, hvd.size()
    collectives = TimedCollectives(ALONE if measurement.independent else HorovodCollectives())
    if measurement.independent:
        share = {"num_ranks": 1, "global_batch_size": train.global_batch_size // ranks}
        train = train.model_copy(update=share)
    spec = spec_of(measurement.cardinalities)
    model = build_model(measurement.model, spec, train.seed, train.embeddings, collectives)
    keep_freed_memory()
    trainer = Trainer(model, train, collectives)
    plan = plan_shards([file.rows for file in measurement.files], train.num_shards, train.global_batch_size)
    own_shards = shards_of_rank(train.num_shards, collectives.rank, collectives.size)
    # The table is small: to read a gigabyte ahead, the loader would decode hundreds of epochs while the step is timed.
    reading = Reading(read_ahead_mib=_READ_AHEAD_MIB)
    loader = Loader(measurement.files, plan, own_shards, spec, train.seed, reading=reading)
    alone_s, together_s, crossed = [], [], []
    waited_s = 0.0
    model.train()
    with Prefetch(loader.batches(_EPOCHS)) as prefetch:
        coming = full_batches(iter(prefetch), train.global_batch_size)
        at_hand = list(islice(coming, 4))
        seconds_of(trainer, islice(cycle(at_hand), 3))
        for _ in range(measurement.turns):
            collectives.take()
            alone_s.append(seconds_of(trainer, islice(cycle(at_hand), steps)))
            crossed.append(collectives.take())
            for _ in islice(coming, _READ_AHEAD):
                pass
            waited = prefetch.wait_s
            together_s.append(seconds_of(trainer, islice(coming, steps)))
            waited_s += prefetch.wait_s - waited
    rows = measurement.train.global_batch_size * steps
    own_rows = rows / ranks * measurement.turns
    communication_s, reduced_bytes, exchanged_bytes = map(sum, zip(*crossed, strict=True))
    return {
        "ranks": ranks,
        "threads_a_rank": measurement.threads,
        "step": round(rows / median(alone_s), 1),
        "end_to_end": round(rows / median(together_s), 1),
        "communication_share": round(communication_s / sum(alone_s), 4),
        "reduced_bytes": round(reduced_bytes / own_rows, 1),
        "exchanged_bytes": round(exchanged_bytes / own_rows, 1),
        "loader_wait_share": round(waited_s / sum(together_s), 4),
    }
