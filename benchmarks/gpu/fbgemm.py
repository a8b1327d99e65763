"""Compares lookup and update of our embedding tables with those of FBGEMM, on one GPU.

    .venv/bin/python benchmarks/gpu/fbgemm.py [--quick]

Both have the same float32 tables, ids and gradients: the 26 tables of Criteo's terabyte log, a batch of 65,536
rows, and skewed ids. FBGEMM runs `SplitTableBatchedEmbeddingBagsCodegen` with all rows in GPU memory, sums of one
row, row-wise Adagrad in its backward pass, and no check of the ids, as ours. Ours is `StackedEmbedding` with the
kernels for lookup and row-wise Adagrad. Two figures per dtype of the vectors:

* forward: the lookup, without gradients;
* step: the lookup, and the backward pass with the update of the rows.

Each gets the ids in the order that it needs: ours (rows, tables), FBGEMM's one table after the other. Bringing them into
this order is not timed. After one step, the script compares all rows that the batch looked up. It fails if they
differ by more than `TOLERANCE` (1e-5 with float32 vectors, 1e-4 with 16 bits): both add up gradients in float32, but
in different orders.

fbgemm-gpu 1.6.0 belongs to torch 2.11 (a release of fbgemm-gpu works only with its release of torch), and needs
CUDA 13. If fbgemm_gpu cannot be imported, the script says so and compares nothing. Without a GPU, shapes are tiny,
Triton interprets our kernels, and nothing is measured; fbgemm-gpu-cpu has the same classes for a CPU.
"""

from __future__ import annotations

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
from training.embeddings.table import StackedEmbedding
from training.optimizers.row_wise_adagrad import RowWiseAdagrad

RATE = 0.01
# Largest difference of a number of a row after one step, by dtype of the vectors. A step changes a number by at most
# RATE. FBGEMM may round a 16-bit gradient once more.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4}


class Contender(Protocol):
    """Tables with rows (all rows, E) float32, and a batch of B rows with one id for each of C tables."""

    def forward(self) -> Tensor:
        """Returns the vectors (B, C, E) of the batch."""

    def step(self) -> None:
        """Looks up the batch, passes the gradient back and updates the rows."""

    def rows(self, places: Tensor) -> Tensor:
        """Returns rows (N, E) by their index (N,) in all rows."""


Maker = Callable[[Setting, Tensor, Tensor, torch.dtype], Contender]


class Ours:
    """Our table and its row-wise Adagrad, with kernels.

    Args:
        setting: device and sizes.
        ids: (B, C) int64.
        gradient: (B, C, E), the gradient of the vectors, in their dtype.
        dtype: the dtype of the vectors.
    """

    def __init__(self, setting: Setting, ids: Tensor, gradient: Tensor, dtype: torch.dtype) -> None:
        with torch.device(setting.device):
            self._table = StackedEmbedding(setting.cardinalities, setting.dim)
        for place, block in enumerate(self._table.block_rows()):
            fill(block, place)
        self._optimizer = RowWiseAdagrad(self._table)
        self._ids, self._gradient, self._dtype, self._steps = ids, gradient, dtype, 0

    def forward(self) -> Tensor:
        return self._table(self._ids, self._dtype)

    def step(self) -> None:
        self.forward().backward(self._gradient)
        gradient = self._table.take_lookup_gradient()
        if gradient is None:
            raise RuntimeError("internal error, please report: the batch has no lookup gradient")
        self._optimizer.step_lookups(gradient, RATE, self._steps)
        self._steps += 1

    def rows(self, places: Tensor) -> Tensor:
        return self._table.weight.detach()[places]


class Fbgemm:
    """FBGEMM's table-batched embeddings. The arguments are those of `Ours`."""

    def __init__(self, setting: Setting, ids: Tensor, gradient: Tensor, dtype: torch.dtype) -> None:
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

        on_gpu = setting.device.type == "cuda"
        place = (
            (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
            if on_gpu
            else (EmbeddingLocation.HOST, ComputeDevice.CPU)
        )
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(count, setting.dim, *place) for count in setting.cardinalities],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=RATE,
            eps=RowWiseAdagrad.epsilon,
            weights_precision=SparseType.FP32,
            output_dtype=SparseType.from_dtype(dtype),
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
            device=setting.device,
        )
        for number, rows in enumerate(self._tables.split_embedding_weights()):
            fill(rows, number)
        self._indices = ids.t().contiguous().flatten()
        self._offsets = torch.arange(ids.numel() + 1, device=setting.device)
        self._gradient = gradient.flatten(1)
        self._starts = torch.tensor([0, *accumulate(setting.cardinalities)], device=setting.device)

    def forward(self) -> Tensor:
        return self._tables(self._indices, self._offsets)

    def step(self) -> None:
        self.forward().backward(self._gradient)

    def rows(self, places: Tensor) -> Tensor:
        weights = self._tables.split_embedding_weights()
        table = torch.searchsorted(self._starts, places, right=True) - 1
        looked_up = torch.empty(len(places), weights[0].shape[1], device=places.device)
        for number, rows in enumerate(weights):
            of_table = table == number
            looked_up[of_table] = rows[places[of_table] - self._starts[number]]
        return looked_up


def fill(rows: Tensor, number: int) -> None:
    """Draws the rows of table `number` from U(-0.1, 0.1). Each call with this number draws the same rows."""
    generator = torch.Generator(rows.device).manual_seed(number)
    rows.detach().uniform_(-0.1, 0.1, generator=generator)


def compare(setting: Setting, dtype: torch.dtype, peer: Maker) -> tuple[dict[str, float], dict[str, float]]:
    """Checks that our tables and those of a peer agree, then returns the milliseconds of both, by figure.

    Raises:
        AssertionError: vectors differ, or rows differ after a step.
    """
    ids = draw_ids(setting.batch, setting.cardinalities, torch.Generator().manual_seed(0)).to(setting.device)
    generator = torch.Generator(setting.device).manual_seed(1)
    shape = (*ids.shape, setting.dim)
    gradient = torch.randn(shape, device=setting.device, generator=generator).to(dtype)
    starts = torch.tensor([0, *accumulate(setting.cardinalities)][:-1], device=setting.device)
    touched = torch.unique(ids + starts)
    ours, theirs = (make(setting, ids, gradient, dtype) for make in (Ours, peer))
    with torch.no_grad():
        torch.testing.assert_close(ours.forward().flatten(1), theirs.forward().flatten(1), rtol=0, atol=0)
    before = ours.rows(touched)
    for contender in (ours, theirs):
        contender.step()
    after = ours.rows(touched)
    assert bool((before != after).any(dim=1).all()), "a row did not change"
    torch.testing.assert_close(after, theirs.rows(touched), rtol=0, atol=TOLERANCE[dtype])
    with torch.no_grad():
        forwards = [milliseconds(contender.forward, setting) for contender in (ours, theirs)]
    steps = [milliseconds(contender.step, setting) for contender in (ours, theirs)]
    mine, other = (
        {"forward": round(forward, 4), "step": round(step, 4)}
        for forward, step in zip(forwards, steps, strict=True)
    )
    return mine, other


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
