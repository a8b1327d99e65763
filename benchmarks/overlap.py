"""Measures how much of the communication between four ranks is hidden behind computation.

    .venv/bin/python benchmarks/overlap.py [--quick] [--ranks N] [--batch ROWS] [--most-rows ROWS]

Four Horovod ranks on one machine compete for its cores. So sleeps replace the computations of a rank, and each
sleep is as long as its computation takes on a core of its own. This applies to the dense part of the published
DLRM (benchmarks/sleeping_model.py), and to lookups and updates (benchmarks/sleeping_calls.py). The rows of the
table are distributed over the ranks. The messages are those of a training run. Three kinds
of steps take turns on the same ranks, with the same code:

* `silent`: no message is sent. Each rank receives what it would have sent.
* `blocking`: a rank waits for each message as soon as it has started it.
* `overlapped`: the step of a training run, which waits for a message when it needs the result.

The time of a step is that of the slowest rank, for `silent` too. So the time in which ranks wait for a slower
rank does not count as communication. The first step of a turn is not measured, because its rows were not
requested in advance.

Ratios:

* `overlapped_over_blocking`: samples per second.
* `hidden`: the share of the communication that costs no time, 1 - (overlapped - silent) / (blocking - silent)
  from the seconds of a step.

The JSON line also has the share of an overlapped step in which a rank waits for messages, by kind.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a file in this folder hides our package training

import horovod.spark
import torch
from torch import Tensor

from benchmarks.criteo_shapes import capped, make_batches, spec_of
from benchmarks.report import machine, summary_line, table
from benchmarks.sleeping_calls import SleepingCalls
from benchmarks.sleeping_model import SecondsOfParts, SleepingDLRM, measure
from benchmarks.training import dlrm
from conf.process import keep_freed_memory
from conf.train_types import Embeddings
from conf.types import Train
from spark.profile import read_properties
from spark.session import build_session
from training.architectures.dlrm import DLRM
from training.collectives import ALONE, Collectives, ReceivedRows
from training.data.batch import Batch
from training.loop.train_step import Trainer
from training.models import build_model

ROOT = Path(__file__).resolve().parent.parent
MODES = ("silent", "blocking", "overlapped")
TARGETS = {"hidden": 0.9}
_BATCHES = 4


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small tables and batches, few steps")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, help="rows of the global batch (default 16,384; quick: 2,048)")
    parser.add_argument("--most-rows", type=int, help="most rows of a table (default 200,000; quick: 5,000)")
    options = parser.parse_args(arguments)
    options.batch = options.batch or (2_048 if options.quick else 16_384)
    options.most_rows = options.most_rows or (5_000 if options.quick else 200_000)
    options.steps, options.turns = (3, 3) if options.quick else (6, 7)
    of_machine = machine(options.ranks, ("torch", "horovod"))
    torch.set_num_threads(1)
    seconds = measure(_model(options, None), options.batch // options.ranks)
    print(f"overlap: the dense part takes {seconds.total * 1e3:.1f} ms a step", file=sys.stderr, flush=True)
    figures = _on_ranks(options, seconds)
    ratios = ratios_of(figures["step_s"])
    _print(figures, ratios)
    ours = {
        "step_s": figures["step_s"]["overlapped"],
        "waiting": figures["waiting"],
        "asleep_s": figures["asleep_s"],
    }
    peers = {mode: figures["step_s"][mode] for mode in ("silent", "blocking")}
    more = {
        "ranks": options.ranks,
        "batch": options.batch,
        "most_rows": options.most_rows,
        "dense_part_s": round(seconds.total, 4),
        "targets": TARGETS,
    }
    print(summary_line("overlap", of_machine, ours, peers, ratios, **more))
    return 0


def ratios_of(step_s: dict[str, float]) -> dict[str, float]:
    """Returns the ratios that the module's docstring describes, from the seconds of a step of each kind."""
    exposed = step_s["overlapped"] - step_s["silent"]
    communication = step_s["blocking"] - step_s["silent"]
    return {
        "overlapped_over_blocking": step_s["blocking"] / step_s["overlapped"],
        "hidden": 1 - exposed / communication,
    }


def _model(options: argparse.Namespace, collectives: Collectives | None) -> DLRM:
    """Returns the published DLRM. All ranks have the same number of rows, so row indices are valid on each."""
    most_rows = options.most_rows if collectives else 4
    rows = [-(-count // options.ranks) * options.ranks for count in capped(most_rows)]
    model = build_model(dlrm(), spec_of(rows), 1, _settings(), collectives or ALONE)
    assert isinstance(model, DLRM)
    return model


def _settings() -> Embeddings:
    return Embeddings(placement="row_wise")


def _on_ranks(options: argparse.Namespace, seconds: SecondsOfParts) -> dict[str, Any]:
    """Runs the measurement on ranks that a Spark application starts, as in a training run.

    `horovod.run` of Horovod 0.28.1 starts ranks without pauses between negotiations and without a cache of
    responses, because two of its default arguments are tuples.
    """
    from benchmarks import overlap

    spark = build_session(
        "overlap",
        {**read_properties(ROOT / "conf/spark/local.conf"), "spark.master": f"local[{options.ranks}]"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        results: list[dict[str, Any]] = horovod.spark.run(
            overlap.run_rank,
            args=(vars(options), seconds),
            num_proc=options.ranks,
            use_gloo=True,
            env={"PYTHONPATH": str(ROOT)},
            verbose=0,
        )
    finally:
        spark.stop()
    return results[0]


def run_rank(options: dict[str, Any], seconds: SecondsOfParts) -> dict[str, Any]:
    """Measures in the process of a rank.

    Returns:
        `step_s`: the seconds of a step of each kind on the slowest rank, medians over turns of the mean. `asleep_s`: how long the functions of
        `SleepingCalls` sleep. `waiting`: the share of the time of overlapped steps in which this rank waits, by
        the kind of message.
    """
    import horovod.torch as hvd

    from training.launch.rank_main import HorovodCollectives

    torch.set_num_threads(1)
    keep_freed_memory()
    hvd.init()
    try:
        return _measure(argparse.Namespace(**options), seconds, HorovodCollectives())
    finally:
        hvd.shutdown()


def _measure(options: argparse.Namespace, seconds: SecondsOfParts, inner: Collectives) -> dict[str, Any]:
    collectives = SwitchedCollectives(inner)
    model = SleepingDLRM(_model(options, collectives), seconds).train()
    train = Train(num_ranks=options.ranks, global_batch_size=options.batch, embeddings=_settings())
    trainer = Trainer(model, train, collectives)
    rows = options.batch // options.ranks
    batches = make_batches(_BATCHES, rows, capped(options.most_rows), seed=inner.rank)
    calls = SleepingCalls(trainer)
    run_steps(trainer, batches, len(batches) + 1)
    for rank in range(inner.size):
        inner.allreduce_sum(torch.zeros(1))  # the other ranks wait here
        if rank == inner.rank:
            calls.measure()
    inner.allreduce_sum(torch.zeros(1))
    asleep_s = calls.sleep()
    seconds_of: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(options.turns + 1):
        for mode in (*MODES[turn % 3 :], *MODES[: turn % 3]):
            collectives.mode = mode
            run_steps(trainer, batches, 1)  # requests the rows of the next step
            if not turn:
                collectives.waited.clear()
            inner.allreduce_sum(torch.zeros(1))  # all ranks begin together
            of_steps = run_steps(trainer, batches[1:] + batches[:1], options.steps)
            of_ranks = inner.allgather(torch.tensor(of_steps))[0].view(inner.size, -1)
            if turn:  # the first turn warms up
                seconds_of[mode].append(float(of_ranks.amax(dim=0).mean()))
            trainer.discard_requests()
    overlapped = sum(seconds_of["overlapped"]) * options.steps
    return {
        "step_s": {mode: round(median(values), 5) for mode, values in seconds_of.items()},
        "asleep_s": {name: round(seconds, 5) for name, seconds in asleep_s.items()},
        "waiting": {
            kind: round(waited / overlapped, 4) for kind, waited in sorted(collectives.waited.items())
        },
    }


def run_steps(trainer: Trainer, batches: Sequence[Batch], steps: int) -> list[float]:
    """Does some steps with the batches in turn, each of which gets the next batch too. Returns their seconds."""
    seconds = []
    for batch, next_batch in pairwise(islice(cycle(batches), steps + 1)):
        began = time.perf_counter()
        trainer.step(batch, 1.0, next_batch=next_batch)
        seconds.append(time.perf_counter() - began)
    return seconds


class SwitchedCollectives:
    """Collectives of a rank that send nothing, or wait at once, or wait when the result is needed.

    Attributes:
        mode: one of `MODES`.
        waited: in the mode `overlapped`, the seconds in which this rank waited, by the kind of message.
    """

    def __init__(self, inner: Collectives) -> None:
        self.rank, self.size = inner.rank, inner.size
        self.mode = "overlapped"
        self.waited: dict[str, float] = defaultdict(float)
        self._inner = inner

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """See `Collectives`."""
        return self.start_allreduce_sum(values.clone(), "sum")()

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `Collectives`."""
        if self.mode == "silent":
            return lambda: values
        return self._waiting("dense gradients", self._inner.start_allreduce_sum(values, name))

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """See `Collectives`."""
        if self.mode == "silent":
            return [torch.cat([tensor] * self.size) for tensor in tensors]
        return self._inner.allgather(*tensors)

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """See `Collectives`."""
        return self.start_all_to_all(values, splits, "exchange")()

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        """See `Collectives`."""
        if self.mode == "silent":
            return lambda: (values, list(splits))
        kind = "ids" if values.dim() == 1 else "vectors" if name.endswith(".request") else "row gradients"
        return self._waiting(kind, self._inner.start_all_to_all(values, splits, name))

    def _waiting(self, kind: str, wait: Callable[[], Any]) -> Callable[[], Any]:
        if self.mode == "blocking":
            result = wait()
            return lambda: result

        def timed() -> Any:
            began = time.perf_counter()
            result = wait()
            self.waited[kind] += time.perf_counter() - began
            return result

        return timed


def _print(figures: dict[str, Any], ratios: dict[str, float]) -> None:
    print(table(["step", "ms"], [[mode, f"{figures['step_s'][mode] * 1e3:.1f}"] for mode in MODES]))
    print()
    print(
        table(["waits for", "share"], [[kind, f"{share:.1%}"] for kind, share in figures["waiting"].items()])
    )
    print()
    for name, ratio in ratios.items():
        target = TARGETS.get(name)
        verdict = "" if target is None else f", target {target}: {'met' if ratio >= target else 'MISSED'}"
        print(f"{name}: {ratio:.3f}{verdict}")


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
