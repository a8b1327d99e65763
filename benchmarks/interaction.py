"""Compares the compiled interaction of DLRM with torch's operators on a CPU, forward and backward.

    .venv/bin/python benchmarks/interaction.py [--quick]

The peer is our own function with torch's operators (training/models/interaction.py), which runs where the
compiled library is missing. Both compute the same batch in one process, with as many threads as there are cores.
They take turns, and the figure is the shortest of many calls, in microseconds per row. The results are compared.
The shapes are that of the generated log (26 embeddings of 16 numbers), a small one and a large one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks has files named like packages

import torch
from torch import Tensor

from benchmarks.report import machine, summary_line, table
from conf.freed_memory import keep_freed_memory
from training.models import interaction
from training.native.library import library

# Rows of a batch, embeddings of a row, numbers of an embedding.
SHAPES = {"generated": (2048, 26, 16), "small": (2048, 10, 8), "large": (2048, 26, 128)}
CALLS, QUICK_CALLS = 200, 20


def shortest_us(functions: Sequence[Callable[[], object]], calls: int, rows: int) -> list[float]:
    """Returns the shortest call of each function, in microseconds per row. The functions take turns."""
    shortest = [float("inf")] * len(functions)
    for _ in range(calls):
        for place, function in enumerate(functions):
            began = time.perf_counter()
            function()
            shortest[place] = min(shortest[place], (time.perf_counter() - began) / rows * 1e6)
    return shortest


def by_torch(function: Callable[..., object], *arguments: object) -> object:
    """Calls one of our operators as if the compiled library were missing."""
    with patch.object(interaction, "library", lambda: None):
        return function(*arguments)


def compare(rows: int, count: int, dim: int, calls: int) -> dict[str, list[float]]:
    """Returns [ours, torch's] microseconds per row of the forward and the backward pass of one shape.

    Raises:
        AssertionError: the results differ.
    """
    generator = torch.Generator().manual_seed(0)
    bottom = torch.randn(rows, dim, generator=generator)
    embedded = torch.randn(rows, count, dim, generator=generator)
    forward, backward = interaction.tiled_interaction, interaction.tiled_interaction_backward
    inputs = (bottom, embedded, torch.float32)
    result = forward(*inputs)
    gradient = torch.randn(result.shape, generator=generator)
    torch.testing.assert_close(result, by_torch(forward, *inputs), rtol=1e-4, atol=1e-3)
    gradients: tuple[Tensor, ...] = backward(bottom, embedded, gradient)
    torch.testing.assert_close(
        gradients, by_torch(backward, bottom, embedded, gradient), rtol=1e-4, atol=1e-3
    )
    passes: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {
        "forward": (forward, inputs),
        "backward": (backward, (bottom, embedded, gradient)),
    }
    return {
        name: shortest_us([partial(function, *taken), partial(by_torch, function, *taken)], calls, rows)
        for name, (function, taken) in passes.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CALLS} instead of {CALLS} calls")
    options = parser.parse_args(arguments)
    if library() is None:
        raise SystemExit("the compiled library is missing: run `make setup`")
    keep_freed_memory()  # as in a training
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    ours: dict[str, float] = {}
    peers: dict[str, float] = {}
    with torch.inference_mode():
        for shape, sizes in SHAPES.items():
            for name, (mine, other) in compare(*sizes, QUICK_CALLS if options.quick else CALLS).items():
                ours[f"{shape}_{name}"], peers[f"{shape}_{name}"] = round(mine, 3), round(other, 3)
    ratios = {name: round(peers[name] / ours[name], 2) for name in ours}
    rows = [(name, f"{ours[name]:.3f}", f"{peers[name]:.3f}", f"{ratios[name]:.2f}") for name in ours]
    print(table(("shape and pass", "compiled, µs a row", "torch, µs a row", "times as fast"), rows))
    print(summary_line("interaction", machine(cores, ("torch",)), ours, {"torch": peers}, ratios))


if __name__ == "__main__":
    main()
