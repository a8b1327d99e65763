"""Predicts how fast one GPU can train DLRM, from the bytes and operations of each part of a step.

    .venv/bin/python benchmarks/gpu/roofline.py [--quick]

It needs no GPU and measures nothing. For each part of a step, it counts the bytes that the part must read and
write in the GPU's memory, and its floating-point operations. The least time of a part is the larger of

    bytes / memory bandwidth    and    operations / rate of bf16 products

(Williams, Waterman and Patterson 2009, "Roofline", Communications of the ACM 52(4)). Parts run one after the
other, so the least time of a step is the sum. Vectors and their gradients are bf16. The bound ignores caches, with one
exception: the optimizer reads and writes a row only once, even if a batch looks it up several times.

The network and the batches are those of training_step.py. For the A100, the published rates show which share of
the bound a good program reaches. The ratio `aim` is the bound on an H200 divided by our target of 12 million
samples/s; `aim_at_published_share` is the same if only the published share of the bound is reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import yaml

from benchmarks.criteo_shapes import CARDINALITIES, NUM_DENSE, draw_ids
from benchmarks.gpu.training_step import AIM, PUBLISHED
from benchmarks.report import machine, summary_line, table

ROOT = Path(__file__).resolve().parents[2]
BATCH, QUICK_BATCH = 65_536, 4_096
_HALF, _FULL, _ID = 2, 4, 8  # bytes of a number in bf16 and float32, and of an id


@dataclass(frozen=True)
class Gpu:
    """Bytes per second of a GPU's memory, and dense bf16 operations per second, from NVIDIA's data sheets."""

    bytes_per_s: float
    flops_per_s: float


GPUS = {
    "H200": Gpu(4.8e12, 990e12),
    "H100": Gpu(3.35e12, 990e12),
    "A100-80": Gpu(2.039e12, 312e12),
}


@dataclass(frozen=True)
class Part:
    """Bytes and floating-point operations of a part of a step, for each sample of the batch."""

    bytes: float
    flops: float = 0.0

    def seconds(self, gpu: Gpu) -> float:
        """Returns the least time for a sample."""
        return max(self.bytes / gpu.bytes_per_s, self.flops / gpu.flops_per_s)


@dataclass(frozen=True)
class Network:
    """The sizes of a DLRM.

    Attributes:
        dim: E, numbers per vector.
        features: C, number of features that are ids.
        bottom, top: widths of the layers of both MLPs, with their inputs.
        storage: bytes of a number in the table.
    """

    dim: int
    features: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    storage: int

    @classmethod
    def of(cls, settings: dict[str, Any], features: int, num_dense: int, storage: int) -> Network:
        """Returns the sizes of the network with the settings of a model file."""
        dim, vectors = settings["embedding_dim"], features + 1
        first = dim + vectors * (vectors - 1) // 2
        bottom, top = (num_dense, *settings["bottom_mlp"]), (first, *settings["top_mlp"], 1)
        return cls(dim, features, bottom, top, storage)

    @property
    def dense_weights(self) -> int:
        """Returns the number of weights of both MLPs."""
        return sum(
            inputs * outputs + outputs for mlp in (self.bottom, self.top) for inputs, outputs in pairwise(mlp)
        )


def parts_of(network: Network, batch: int, distinct: float) -> dict[str, Part]:
    """Returns the parts of a step.

    Args:
        network: the network.
        batch: rows of a batch.
        distinct: the share of a batch's lookups that are the first lookup of a row in the batch.
    """
    lookups, dim = network.features, network.dim
    vectors = lookups * dim
    width = network.top[0]
    pairs = (lookups + 1) ** 2 * dim  # a program multiplies the whole square
    row = dim * network.storage + _FULL  # with the state of row-wise Adagrad
    return {
        "gather": Part(lookups * _ID + vectors * (network.storage + _HALF)),
        "interaction, forward": Part(vectors * _HALF + (dim + width) * _HALF, 2 * pairs),
        "interaction, backward": Part(vectors * 2 * _HALF + (2 * dim + width) * _HALF, 2 * pairs),
        # Keys of 4 bytes and positions of 8 are sorted in 4 passes, which read and write them.
        "sort of rows": Part(lookups * (4 + 8) * 2 * 4),
        "update of rows": Part(lookups * (4 + 8) + vectors * _HALF + lookups * distinct * 2 * row),
        "MLPs, forward": _forward(network),
        "MLPs, backward": _backward(network),
        # Weights, two moments and gradients are read; weights and moments are written, and weights are cast to bf16.
        "dense optimizer": Part(network.dense_weights * (7 * _FULL + _FULL + _HALF) / batch),
    }


def _layers(network: Network) -> list[tuple[int, int]]:
    return [*pairwise(network.bottom), *pairwise(network.top)]


def _forward(network: Network) -> Part:
    """Returns the forward pass of both MLPs.

    Each layer reads its input and writes its output. The bias and the ReLU cost no further bytes or operations.
    """
    layers = _layers(network)
    return Part(
        sum((inputs + outputs) * _HALF for inputs, outputs in layers),
        sum(2 * inputs * outputs for inputs, outputs in layers),
    )


def _backward(network: Network) -> Part:
    """Returns the backward pass of both MLPs.

    Each layer computes two products: the gradient of its input, and that of its weights. Both read the gradient
    of its output. The bottom MLP's input needs no gradient.
    """
    layers = _layers(network)
    first = network.bottom[0] * network.bottom[1]
    return Part(
        sum((3 * outputs + 2 * inputs) * _HALF for inputs, outputs in layers),
        sum(4 * inputs * outputs for inputs, outputs in layers) - 2 * first,
    )


def distinct_share(batch: int, cardinalities: Sequence[int]) -> float:
    """Returns the share of a random batch's lookups that are the first lookup of a row in the batch."""
    ids = draw_ids(batch, cardinalities, torch.Generator().manual_seed(0))
    return sum(len(column.unique()) for column in ids.T) / ids.numel()


def samples_per_s(parts: dict[str, Part], gpu: Gpu) -> float:
    """Returns the most samples per second that the parts allow, one after the other."""
    return 1 / sum(part.seconds(gpu) for part in parts.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a batch of 4,096 rows")
    batch = QUICK_BATCH if parser.parse_args(arguments).quick else BATCH
    of_machine = {**machine(1, ("torch",)), "gpu": None}
    settings = yaml.safe_load((ROOT / "conf/models/dlrm_criteo.yaml").read_text(encoding="utf-8"))
    distinct = distinct_share(batch, CARDINALITIES)
    ours: dict[str, Any] = {"batch": batch, "distinct_share": round(distinct, 4)}
    bounds: dict[str, float] = {}
    for storage, name in ((_FULL, "fp32"), (_HALF, "bf16")):
        network = Network.of(settings, len(CARDINALITIES), NUM_DENSE, storage)
        parts = parts_of(network, batch, distinct)
        print(f"\nTables in {name}, batch {batch:,}: {distinct:.0%} of the lookups are the first of a row\n")
        _print(parts)
        bounds |= {f"{gpu}, tables in {name}": samples_per_s(parts, figures) for gpu, figures in GPUS.items()}
        ours[f"parts_{name}"] = {
            part: {"bytes": round(figures.bytes, 1), "flops": figures.flops}
            for part, figures in parts.items()
        }
    ours["most_samples_per_s"] = {name: round(bound) for name, bound in bounds.items()}
    published = max(PUBLISHED.values()) / bounds["A100-80, tables in fp32"]
    best = bounds["H200, tables in fp32"]
    print()
    print(table(["", "most samples/s"], [[name, f"{bound:,.0f}"] for name, bound in bounds.items()]))
    print(f"\nOn the A100, the best published rate is {published:.0%} of the bound.")
    ratios: dict[str, float | None] = {"aim": best / AIM, "aim_at_published_share": best * published / AIM}
    for ratio, value in ratios.items():
        assert value is not None
        print(f"{ratio}: {value:.2f}")
    print(summary_line("gpu_roofline", of_machine, ours, {"published": PUBLISHED}, ratios, predicted=True))
    return 0


def _print(parts: dict[str, Part]) -> None:
    gpu = GPUS["H200"]
    rows = [
        [
            name,
            f"{part.bytes:,.0f}",
            f"{part.flops / 1e6:.2f}",
            "memory" if part.bytes / gpu.bytes_per_s >= part.flops / gpu.flops_per_s else "products",
            f"{part.seconds(gpu) * 1e9:.2f}",
        ]
        for name, part in parts.items()
    ]
    total = sum(part.seconds(gpu) for part in parts.values())
    sums = [sum(part.bytes for part in parts.values()), sum(part.flops for part in parts.values())]
    rows.append(["step", f"{sums[0]:,.0f}", f"{sums[1] / 1e6:.2f}", "", f"{total * 1e9:.2f}"])
    print(table(["part", "bytes a sample", "MFLOP a sample", "bound by", "ns a sample on an H200"], rows))


if __name__ == "__main__":
    sys.exit(main())
