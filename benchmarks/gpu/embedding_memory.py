"""Measures what embedding tables cost that are larger than a GPU's memory, on one GPU.

    .venv/bin/python benchmarks/gpu/embedding_memory.py [--quick]

With `train.embedding_memory: auto`, the frequent rows of tables are in the GPU's memory, and the others in pinned
host memory, which kernels read and write over the bus. The script gives the 26 tables of Criteo's terabyte log (15.6 GiB)
room for only a part of their rows on the device, chosen as a training run chooses them: by the counts of ids, which come
here from batches that are not measured. Ids are drawn from a power law with exponent 1.45 (benchmarks/criteo_shapes.py).
Figures per share of the rows on the device:

* forward: milliseconds of a lookup of 65,536 rows;
* step: milliseconds of a lookup and of the update of its rows with row-wise Adagrad;
* hot: the share of the lookups that read rows on the device;
* samples_per_s: of complete steps of the published DLRM (training_step.py) in bf16, with all rows on the device and
  with each share.

The peers have the same rows, ids and gradients, and all rows in host memory:

* `fbgemm_…`: FBGEMM's `SplitTableBatchedEmbeddingBagsCodegen` with `EmbeddingLocation.MANAGED_CACHING`, and a cache on the
  device with room for the same share of the rows. Without the package fbgemm-gpu (fbgemm.py), this peer is left out.
* `host`: torch on the CPU looks up the rows and updates them; vectors and gradients are copied.

A ratio is the time of the peer's step divided by that of ours. `device_over_…` is the time of our step with all rows on
the device, divided by that with a share; `training_…` is the rate of complete steps with a share, divided by that with all
rows on the device. After one step with each batch, all rows that were looked up are compared. Without a GPU,
shapes are tiny, Triton interprets our kernels, and nothing is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor

from benchmarks.criteo_shapes import draw_ids, make_batches, spec_of
from benchmarks.gpu.fbgemm import (
    BATCHES,
    RATE,
    TOLERANCE,
    Fbgemm,
    Ours,
    check,
    draw_batches,
    drawn_rows,
    measure,
)
from benchmarks.gpu.kernels import half
from benchmarks.gpu.setting import Setting, read_setting
from benchmarks.gpu.training_step import model_of
from benchmarks.report import summary_line, table
from benchmarks.steps import seconds_of
from conf.types import Train
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.embeddings.placement import Placement, PlannedTable, Tiers, choose_tiers, replicate_all
from training.loop.train_step import Trainer
from training.models import build_model, planned_tables
from training.optimizers.updates import RowWiseAdagrad

SHARES = (0.5, 0.2, 0.05)
# Batches whose ids are counted; their seeds follow those of the measured batches.
_COUNTED = 8


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    dtype = half(setting)
    batches, gradient = draw_batches(setting, dtype)
    counts = count_ids(setting)
    ours: dict[str, dict[str, float]] = {}
    peers: dict[str, dict[str, float]] = {}
    ratios: dict[str, float | None] = {}
    whole = Ours(setting, batches, gradient, dtype)
    ours["device"] = measure(whole, setting)
    host = Host(setting, batches, gradient, dtype)
    check(host, Ours(setting, batches, gradient, dtype), setting, batches, TOLERANCE[dtype])
    few = replace(setting, steps=min(setting.steps, 2), turns=min(setting.turns, 3))  # it is slow
    peers["host"] = measure(host, few)
    del whole, host
    for share in shares_of(setting):
        placement = placement_of(setting, share, counts)
        name = f"{share:.0%}"
        divided = Ours(setting, batches, gradient, dtype, placement)
        check(divided, Ours(setting, batches, gradient, dtype), setting, batches, TOLERANCE[dtype])
        ours[name] = measure(divided, setting) | {"hot": hot_share(placement, batches)}
        del divided
        if fbgemm_is_here():
            peer = partial(Fbgemm, cached=share)(setting, batches, gradient, dtype)
            check(peer, Ours(setting, batches, gradient, dtype), setting, batches, TOLERANCE[dtype])
            peers[f"fbgemm_{name}"] = measure(peer, setting)
            del peer
            ratios[f"fbgemm_{name}"] = peers[f"fbgemm_{name}"]["step"] / ours[name]["step"]
        ratios[f"host_{name}"] = peers["host"]["step"] / ours[name]["step"]
        ratios[f"device_over_{name}"] = ours["device"]["step"] / ours[name]["step"]
    _print(setting, {**ours, **peers})
    for name, speed in training_speeds(setting, counts).items():
        ours[name]["samples_per_s"] = speed
        if name != "device":
            ratios[f"training_{name}"] = speed / ours["device"]["samples_per_s"]
    _print(setting, ours)
    measured = {key: value if setting.measures else None for key, value in ratios.items()}
    print(summary_line("gpu_embedding_memory", of_machine, ours, peers, measured, measures=setting.measures))
    return 0


def shares_of(setting: Setting) -> tuple[float, ...]:
    """Returns the shares of the rows that are on the device; one if nothing is measured."""
    return SHARES if setting.measures else SHARES[1:2]


def fbgemm_is_here() -> bool:
    """Returns whether FBGEMM can be imported. OSError: its libraries are for another torch."""
    try:
        import fbgemm_gpu  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def count_ids(setting: Setting) -> list[Tensor]:
    """Returns how often each id of each feature occurs in batches that are not measured."""
    counts = [torch.zeros(rows, dtype=torch.int64) for rows in setting.cardinalities]
    for seed in range(BATCHES, BATCHES + _COUNTED):
        ids = draw_ids(setting.batch, setting.cardinalities, torch.Generator().manual_seed(seed))
        for counted, column in zip(counts, ids.T, strict=True):
            counted += torch.bincount(column, minlength=len(counted))
    return counts


def placement_of(setting: Setting, share: float, counts: Sequence[Tensor]) -> Placement:
    """Returns which rows are on the device if it has room for a share of them."""
    placement = replicate_all(setting.cardinalities)
    names = tuple(f"C{number}" for number in range(1, len(counts) + 1))
    planned = PlannedTable(placement, 4 * setting.dim + 4, (1,) * len(counts), names)
    return replace(placement, hot=tiers_of(setting, share, counts, [planned]).hot[0])


def tiers_of(
    setting: Setting, share: float, counts: Sequence[Tensor], planned: Sequence[PlannedTable]
) -> Tiers:
    """Returns which rows are on the device, for a share of the rows' bytes."""
    of_ids = {f"C{number}": np.asarray(counted) for number, counted in enumerate(counts, start=1)}
    room = int(sum(it.bytes_of(0) for it in planned) * share)
    tiers = choose_tiers(planned, of_ids, room, pinned=setting.measures)
    if tiers is None:
        raise RuntimeError(f"internal error, please report: a share of {share} has room for all rows")
    return tiers


def training_speeds(setting: Setting, counts: Sequence[Tensor]) -> dict[str, float]:
    """Returns the samples per second of complete training steps, by share of the rows on the device."""
    model, spec = model_of(setting), spec_of(setting.cardinalities)
    batches = [
        batch.to(setting.device) for batch in make_batches(BATCHES, setting.batch, setting.cardinalities)
    ]
    fast = {"precision": "bf16", "compile": True, "cuda_graphs": True} if setting.measures else {}
    train = Train.model_validate(
        {"num_ranks": 1, "num_shards": 1, "global_batch_size": setting.batch, **fast}
    )
    planned = planned_tables(model, spec, train.embeddings, LocalCollectives())
    speeds = {}
    for share in (None, *shares_of(setting)):
        tiers = None if share is None else tiers_of(setting, share, counts, planned)
        with torch.device(setting.device):
            built = build_model(model, spec, tiers=tiers).to(setting.device)
        trainer = Trainer(built, train, LocalCollectives())
        built.train()
        step = partial(_step, trainer)
        seconds_of(step, batches, 5 if setting.measures else 1, setting.device)
        seconds = [
            seconds_of(step, batches, setting.steps, setting.device) for _ in range(min(setting.turns, 3))
        ]
        rate = setting.steps * setting.batch / sorted(seconds)[len(seconds) // 2]
        speeds["device" if share is None else f"{share:.0%}"] = round(rate, 1)
        del built, trainer, step
        if setting.measures:
            torch.cuda.empty_cache()
    return speeds


def _step(trainer: Trainer, batch: Batch) -> None:
    trainer.step(batch, 1.0)


def hot_share(placement: Placement, batches: Sequence[Tensor]) -> float:
    """Returns the share of the lookups of the measured batches that read rows on the device."""
    hot = torch.tensor(placement.hot, device=batches[0].device)
    return round(float(torch.stack([(ids < hot).float().mean() for ids in batches]).mean()), 4)


class Host:
    """Rows in host memory, which torch looks up and updates on the CPU. The arguments are those of `Ours`."""

    def __init__(
        self, setting: Setting, batches: Sequence[Tensor], gradient: Tensor, dtype: torch.dtype
    ) -> None:
        tables = range(len(setting.cardinalities))
        self._rows = torch.cat([drawn_rows(setting, number).cpu() for number in tables])
        self._sums = torch.zeros(len(self._rows))
        starts = torch.tensor([0, *accumulate(setting.cardinalities)][:-1])
        self._places = [(ids.cpu() + starts).flatten() for ids in batches]
        self._gradient, self._dtype, self._device = gradient, dtype, setting.device

    def forward(self, number: int) -> Tensor:
        looked_up = self._rows.index_select(0, self._places[number]).to(self._dtype)
        return looked_up.view(self._gradient.shape).to(self._device)

    def step(self, number: int) -> None:
        self.forward(number)
        gradient = self._gradient.flatten(0, 1).cpu().float()
        rows, position = torch.unique(self._places[number], return_inverse=True)
        summed = torch.zeros(len(rows), gradient.shape[1]).index_add_(0, position, gradient)
        total = self._sums[rows] + summed.square().mean(dim=1)
        self._sums[rows] = total
        scale = -RATE / (total.sqrt() + RowWiseAdagrad.epsilon)
        self._rows.index_add_(0, rows, summed * scale.unsqueeze(1))

    def rows(self, places: Tensor) -> Tensor:
        return self._rows[places.cpu()].to(self._device)


def _print(setting: Setting, figures: dict[str, dict[str, float]]) -> None:
    print(setting.heading())
    rows = [
        [
            name,
            f"{it['forward']:.3f}",
            f"{it['step']:.3f}",
            f"{it['hot']:.4f}" if "hot" in it else "",
            f"{it['samples_per_s']:,.0f}" if "samples_per_s" in it else "",
        ]
        for name, it in figures.items()
    ]
    print(table(["rows on the device", "forward ms", "step ms", "hot lookups", "samples/s"], rows))


if __name__ == "__main__":
    sys.exit(main())
