"""Compares each of our GPU kernels with torch operators that compute the same result, on one GPU.

    .venv/bin/python benchmarks/gpu/kernels.py [--quick]

For each kernel, the script prints the milliseconds of the kernel and of torch. It also prints the kernel's
memory throughput: the bytes that must at least be read and written, divided by the time. The input is a batch
with the shapes of Criteo's terabyte log. Vectors are bf16; embedding tables are float32 or bf16. Torch
computes the results as follows:

* gather: `embedding` of ids plus offsets, cast to bf16;
* interaction, forward and backward: concatenation, batched matrix product, index_select, concatenation, with
  gradients by autograd;
* update: `unique` and `index_add_` sum the gradients of equal rows, then row-wise Adagrad updates these rows.

The script fails if the results of a kernel and of torch differ by more than rounding. Without a GPU, shapes
are tiny, Triton interprets the kernels, and nothing is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.criteo_shapes import draw_ids
from benchmarks.gpu.setting import Setting, read_setting
from benchmarks.report import summary_line, table
from benchmarks.steps import wait_for

Work = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    generator = torch.Generator().manual_seed(0)
    ids = draw_ids(setting.batch, setting.cardinalities, generator).to(setting.device)
    pairs: dict[str, tuple[Work, Work, int]] = {}
    for name, storage in (("fp32", torch.float32), ("16_bit", half(setting))):
        pairs[f"gather_{name}"] = gathers(setting, ids, storage)
        pairs[f"update_{name}"] = updates(setting, ids, storage)
    pairs["interaction"] = interactions(setting)
    ours, peers, ratios = {}, {}, {}
    for name, (mine, theirs, traffic) in pairs.items():
        mine_ms, theirs_ms = (milliseconds(work, setting) for work in (mine, theirs))
        ours[name] = {"ms": round(mine_ms, 4), "gb_per_s": round(traffic / mine_ms / 1e6, 1)}
        peers[name] = {"ms": round(theirs_ms, 4)}
        ratios[name] = theirs_ms / mine_ms
    print(setting.heading())
    rows = [
        [
            name,
            f"{figures['ms']:.3f}",
            f"{peers[name]['ms']:.3f}",
            f"{ratios[name]:.2f}",
            f"{figures['gb_per_s']:,.0f}",
        ]
        for name, figures in ours.items()
    ]
    print(table(["kernel", "ours ms", "torch ms", "times as fast", "ours GB/s"], rows))
    measured: dict[str, float | None] = {
        name: ratio if setting.measures else None for name, ratio in ratios.items()
    }
    print(summary_line("gpu_kernels", of_machine, ours, peers, measured, measures=setting.measures))
    return 0


def half(setting: Setting) -> torch.dtype:
    """Returns the 16-bit dtype: bf16, or fp16 if Triton interprets kernels.

    The interpreter cannot compute matrix products in bf16.
    """
    return torch.bfloat16 if setting.measures else torch.float16


def milliseconds(work: Work, setting: Setting) -> float:
    """Returns the milliseconds of one call of `work`: the median over turns of the mean in a turn."""
    work()
    seconds = []
    for _ in range(setting.turns):
        wait_for(setting.device)
        began = time.perf_counter()
        for _ in range(setting.steps):
            work()
        wait_for(setting.device)
        seconds.append((time.perf_counter() - began) / setting.steps)
    return sorted(seconds)[len(seconds) // 2] * 1e3


def gathers(setting: Setting, ids: Tensor, storage: torch.dtype) -> tuple[Work, Work, int]:
    """Checks that the lookup of ids in a table gives the same result with our kernel and with torch.

    Returns:
        A function that calls our kernel, a function that calls torch, and the number of bytes that must at
            least be read and written.
    """
    from training.kernels.lookup import FeaturePositions, gather

    starts = _first_rows(setting)
    features = FeaturePositions.of(starts, [], False)
    weight = _weight(setting, storage)

    def ours() -> Tensor:
        return gather(weight, ids, features, half(setting))

    def theirs() -> Tensor:
        return functional.embedding(ids + starts, weight).to(half(setting))

    _assert_close(ours(), theirs(), 2**-7)
    return ours, theirs, ids.numel() * (8 + setting.dim * (weight.element_size() + 2))


def updates(setting: Setting, ids: Tensor, storage: torch.dtype) -> tuple[Work, Work, int]:
    """Checks that our kernel and torch give equal rows after an update. Returns values like `gathers`.

    For a 16-bit table, torch rounds to the nearest value. This is less work than the stochastic rounding of
    our kernel.
    """
    from training.kernels.row_update import update_rows

    rows = (ids + _first_rows(setting)).flatten()
    gradient = torch.randn(len(rows), setting.dim, device=setting.device).to(half(setting))
    mine, theirs = (_weight(setting, storage) for _ in range(2))
    my_sums, their_sums = (torch.zeros(len(mine), device=setting.device) for _ in range(2))

    def ours() -> Tensor:
        update_rows(mine, my_sums, rows, gradient, 0.01)
        return mine

    def plain() -> Tensor:
        unique, position = torch.unique(rows, return_inverse=True)
        summed = torch.zeros(len(unique), setting.dim, device=setting.device)
        summed.index_add_(0, position, gradient.float())
        total = their_sums[unique] + summed.square().mean(dim=1)
        their_sums[unique] = total
        scale = -0.01 / (total.sqrt() + 1e-8)
        theirs[unique] = (theirs[unique].float() + summed * scale.unsqueeze(1)).to(storage)
        return theirs

    touched = torch.unique(rows)  # copies of whole tables would not fit into memory
    _assert_close(ours()[touched], plain()[touched], 1e-4 if storage == torch.float32 else 2**-6)
    of_rows = len(touched) * 2 * (setting.dim * mine.element_size() + 4)
    traffic = gradient.numel() * 2 + len(rows) * 8 + of_rows
    return ours, plain, traffic


def interactions(setting: Setting) -> tuple[Work, Work, int]:
    """Checks that our kernel and torch compute the same result and gradients of DLRM's interaction.

    Returns two functions and a number of bytes, like `gathers`.
    """
    from training.kernels.interaction import interact

    count = len(setting.cardinalities) + 1
    shape = (setting.batch, count, setting.dim)
    vectors = (torch.randn(shape, device=setting.device) / setting.dim**0.5).to(half(setting))
    bottom, embedded = (part.contiguous().requires_grad_() for part in vectors.split([1, count - 1], dim=1))
    lower = torch.tril_indices(count, count, offset=-1, device=setting.device)
    flat = lower[0] * count + lower[1]

    def forward_of_torch() -> Tensor:
        stacked = torch.cat([bottom, embedded], dim=1)
        dots = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1).index_select(1, flat)
        return torch.cat([stacked[:, 0], dots], dim=1)

    def forward_of_ours() -> Tensor:
        return interact(bottom[:, 0], embedded)

    gradient = torch.randn_like(forward_of_torch())
    width = gradient.shape[1]
    padded = torch.nn.functional.pad(gradient, (0, forward_of_ours().shape[1] - width))

    def both(forward: Callable[[], Tensor], upstream: Tensor) -> Work:
        return lambda: torch.autograd.grad(forward(), (bottom, embedded), upstream)

    ours, theirs = both(forward_of_ours, padded), both(forward_of_torch, gradient)
    _assert_close(forward_of_ours()[:, :width], forward_of_torch(), 2**-6)
    for mine, other in zip(ours(), theirs(), strict=True):
        _assert_close(mine, other, 2**-5)
    traffic = 2 * (3 * vectors.numel() + 2 * gradient.numel())
    return ours, theirs, traffic


def _first_rows(setting: Setting) -> Tensor:
    """Returns the index (C,) of the first row of each feature in the common table of all features."""
    return torch.tensor([0, *accumulate(setting.cardinalities)][:-1], device=setting.device)


def _weight(setting: Setting, storage: torch.dtype) -> Tensor:
    generator = torch.Generator(setting.device).manual_seed(1)
    shape = (sum(setting.cardinalities), setting.dim)
    return torch.empty(shape, device=setting.device).uniform_(-0.1, 0.1, generator=generator).to(storage)


def _assert_close(mine: Tensor, other: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(mine.float(), other.float(), rtol=tolerance, atol=tolerance)


if __name__ == "__main__":
    sys.exit(main())
