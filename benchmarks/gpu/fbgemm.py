"""Compares lookup and update of our embedding tables with those of FBGEMM, on one GPU.

    .venv/bin/python benchmarks/gpu/fbgemm.py [--quick]

Both have the same float32 tables, ids and gradients: the 26 tables of Criteo's terabyte log, four batches of 65,536
rows, and skewed ids. FBGEMM runs `SplitTableBatchedEmbeddingBagsCodegen` with all rows in GPU memory, sums of one
row, row-wise Adagrad in its backward pass, and no check of the ids, as ours. Ours is `StackedEmbedding` with the
kernels for lookup and row-wise Adagrad. Two figures per dtype of the vectors:

* forward: the lookup, without gradients;
* step: the lookup, and the backward pass with the update of the rows.

Each gets the ids in the order that it needs: ours (rows, tables), FBGEMM's one table after the other. Bringing them into
this order is not timed. After one step with each batch, the script compares all rows that the batches looked up.
It fails if they differ by more than `TOLERANCE` for each step (1e-5 with float32 vectors, 1e-4 with 16 bits): both
add up gradients in float32, but in different orders.

fbgemm-gpu 1.6.0 belongs to torch 2.11 (a release of fbgemm-gpu works only with its release of torch), and needs
CUDA 13. If fbgemm_gpu cannot be imported, the script says so and compares nothing. Without a GPU, shapes are tiny,
Triton interprets our kernels, and nothing is measured; fbgemm-gpu-cpu has the same classes for a CPU.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.criteo_shapes import draw_ids
from benchmarks.gpu.kernels import half, milliseconds
from benchmarks.gpu.setting import Setting, read_setting
from benchmarks.report import summary_line, table
from training.embeddings.placement import Placement
from training.embeddings.table import StackedEmbedding
from training.optimizers.updates import RowWiseAdagrad

RATE = 0.01
BATCHES = 4
# Largest difference of a number of a row after one step, by dtype of the vectors. A step changes a number by at most
# RATE. FBGEMM may round a 16-bit gradient once more.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4}


class Contender(Protocol):
    """Tables with rows (all rows, E) float32, and batches of B rows with one id for each of C tables."""

    def forward(self, number: int) -> Tensor:
        """Returns the vectors (B, C, E) or (B, C * E) of a batch."""

    def step(self, number: int) -> None:
        """Looks up a batch, passes the gradient back and updates the rows."""

    def rows(self, places: Tensor) -> Tensor:
        """Returns rows (N, E) by their index (N,) in all rows."""


Maker = Callable[[Setting, Sequence[Tensor], Tensor, torch.dtype], Contender]


class Ours:
    """Our table and its row-wise Adagrad, with kernels.

    Args:
        setting: device and sizes.
        batches: the ids (B, C) int64 of each batch.
        gradient: (B, C, E), the gradient of the vectors, in their dtype.
        dtype: the dtype of the vectors.
        placement: which rows are in the device's memory; None means all.
    """

    def __init__(
        self,
        setting: Setting,
        batches: Sequence[Tensor],
        gradient: Tensor,
        dtype: torch.dtype,
        placement: Placement | None = None,
    ) -> None:
        with torch.device(setting.device):
            self._table = StackedEmbedding(
                setting.cardinalities, setting.dim, placement=placement, pinned=setting.measures
            )
        for block, rows in zip(self._table.blocks, self._table.block_rows(), strict=True):
            rows.copy_(drawn_rows(setting, block.feature)[block.first : block.first + block.rows])
        self._setting = setting
        self._optimizer = RowWiseAdagrad(self._table)
        self._batches, self._gradient, self._dtype, self._steps = batches, gradient, dtype, 0

    def forward(self, number: int) -> Tensor:
        return self._table(self._batches[number], self._dtype)

    def step(self, number: int) -> None:
        self.forward(number).backward(self._gradient)
        gradient = self._table.take_lookup_gradient()
        if gradient is None:
            raise RuntimeError("internal error, please report: the batch has no lookup gradient")
        self._optimizer.step_lookups(gradient, RATE, self._steps)
        self._steps += 1

    def rows(self, places: Tensor) -> Tensor:
        held = torch.zeros_like(places)  # the place of each row in this process's matrix
        starts = starts_of(self._setting)
        for block in self._table.blocks:
            ids = places - starts[block.feature]
            inside = (ids >= block.first) & (ids < block.first + block.rows)
            held = torch.where(inside, block.place + ids - block.first, held)
        return self._table.matrix.index_select(0, held)


class Fbgemm:
    """FBGEMM's table-batched embeddings.

    Args:
        cached: the share of the rows for which the device's memory has room. The rows are in host memory, and
            FBGEMM copies those that a batch needs into a cache on the device. None means that all rows are on
            the device.
        For the others, see `Ours`.
    """

    def __init__(
        self,
        setting: Setting,
        batches: Sequence[Tensor],
        gradient: Tensor,
        dtype: torch.dtype,
        cached: float | None = None,
    ) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
            BoundsCheckMode,
            EmbeddingLocation,
            PoolingMode,
        )
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        place = (EmbeddingLocation.HOST, ComputeDevice.CPU)
        if setting.device.type == "cuda":
            on_gpu = EmbeddingLocation.DEVICE if cached is None else EmbeddingLocation.MANAGED_CACHING
            place = (on_gpu, ComputeDevice.CUDA)
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(count, setting.dim, *place) for count in setting.cardinalities],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=RATE,
            eps=RowWiseAdagrad.epsilon,
            weights_precision=SparseType.FP32,
            output_dtype=SparseType.from_dtype(dtype),
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
            cache_load_factor=cached or 0.2,
            device=setting.device,
        )
        for number, rows in enumerate(self._tables.split_embedding_weights()):
            rows.copy_(drawn_rows(setting, number))
        self._cached = cached is not None
        self._indices = [ids.t().contiguous().flatten() for ids in batches]
        self._offsets = torch.arange(batches[0].numel() + 1, device=setting.device)
        self._gradient = gradient.flatten(1)
        self._starts = torch.tensor([0, *accumulate(setting.cardinalities)], device=setting.device)

    def forward(self, number: int) -> Tensor:
        return self._tables(self._indices[number], self._offsets)

    def step(self, number: int) -> None:
        self.forward(number).backward(self._gradient)

    def rows(self, places: Tensor) -> Tensor:
        if self._cached:
            self._tables.flush()
        weights = self._tables.split_embedding_weights()
        table = torch.searchsorted(self._starts, places, right=True) - 1
        looked_up = torch.empty(len(places), weights[0].shape[1], device=places.device)
        for number, rows in enumerate(weights):
            of_table = table == number
            looked_up[of_table] = rows[places[of_table] - self._starts[number]]
        return looked_up


def starts_of(setting: Setting) -> Tensor:
    """Returns the index (C,) of the first row of each table among all rows."""
    return torch.tensor([0, *accumulate(setting.cardinalities)][:-1], device=setting.device)


def drawn_rows(setting: Setting, number: int) -> Tensor:
    """Returns the first rows of table `number`, drawn from U(-0.1, 0.1). Each call returns the same rows."""
    generator = torch.Generator(setting.device).manual_seed(number)
    rows = torch.empty(setting.cardinalities[number], setting.dim, device=setting.device)
    return rows.uniform_(-0.1, 0.1, generator=generator)


def draw_batches(setting: Setting, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Returns the ids (B, C) of `BATCHES` batches, and a gradient (B, C, E) of their vectors."""
    batches = [
        draw_ids(setting.batch, setting.cardinalities, torch.Generator().manual_seed(seed)).to(setting.device)
        for seed in range(BATCHES)
    ]
    generator = torch.Generator(setting.device).manual_seed(BATCHES)
    shape = (*batches[0].shape, setting.dim)
    return batches, torch.randn(shape, device=setting.device, generator=generator).to(dtype)


def check(
    ours: Contender, theirs: Contender, setting: Setting, batches: Sequence[Tensor], tolerance: float
) -> None:
    """Checks that two tables return the same vectors, and have the same rows after a step with each batch.

    Raises:
        AssertionError: vectors or rows differ, or a row did not change.
    """
    touched = torch.unique(torch.stack([*batches]) + starts_of(setting))
    before = ours.rows(touched)
    with torch.no_grad():
        mine, other = (contender.forward(0).flatten(1) for contender in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=0, atol=0)
    for number in range(len(batches)):
        for contender in (ours, theirs):
            contender.step(number)
    after = ours.rows(touched)
    assert bool((before != after).any(dim=1).all()), "a row did not change"
    torch.testing.assert_close(after, theirs.rows(touched), rtol=0, atol=tolerance * len(batches))


def measure(contender: Contender, setting: Setting) -> dict[str, float]:
    """Returns the milliseconds of a lookup, and of a lookup with the update. Batches follow one another."""

    def cycle(work: Callable[[int], Any]) -> Callable[[], Any]:
        numbers = itertools.cycle(range(BATCHES))
        return lambda: work(next(numbers))

    with torch.no_grad():
        forward = milliseconds(cycle(contender.forward), setting)
    step = milliseconds(cycle(contender.step), setting)
    return {"forward": round(forward, 4), "step": round(step, 4)}


def compare(setting: Setting, dtype: torch.dtype, peer: Maker) -> tuple[dict[str, float], dict[str, float]]:
    """Checks that our tables and those of a peer agree, then returns the milliseconds of both, by figure.

    Raises:
        AssertionError: vectors differ, or rows differ after a step.
    """
    batches, gradient = draw_batches(setting, dtype)
    ours, theirs = Ours(setting, batches, gradient, dtype), peer(setting, batches, gradient, dtype)
    check(ours, theirs, setting, batches, TOLERANCE[dtype])
    return measure(ours, setting), measure(theirs, setting)


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    try:
        import fbgemm_gpu  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: its libraries are for another torch
        print(f"fbgemm_gpu cannot be imported, so nothing was compared: {error}")
        return 0
    of_machine = setting.machine()
    ours: dict[str, dict[str, float]] = {}
    peers: dict[str, dict[str, float]] = {}
    for name, dtype in (("fp32", torch.float32), ("16_bit", half(setting))):
        ours[name], peers[name] = compare(setting, dtype, Fbgemm)
    print(setting.heading())
    measured: dict[str, float | None] = {}
    rows: list[list[Any]] = []
    for name, figures in ours.items():
        for figure, mine in figures.items():
            ratio = peers[name][figure] / mine
            measured[f"{figure}_{name}"] = ratio if setting.measures else None
            rows.append([f"{figure}, {name}", f"{mine:.3f}", f"{peers[name][figure]:.3f}", f"{ratio:.2f}"])
    print(table(["tables", "ours ms", "FBGEMM ms", "times as fast"], rows))
    print(summary_line("gpu_fbgemm", of_machine, ours, peers, measured, measures=setting.measures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
