"""The device and the sizes of a GPU benchmark: Criteo's terabyte log on a GPU, tiny shapes on a CPU."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.criteo_shapes import capped
from benchmarks.report import machine
from training import kernels

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path.home() / ".cache/nightrank/benchmarks/gpu"


@dataclass(frozen=True)
class Setting:
    """The device and the sizes of a GPU benchmark.

    Attributes:
        device: the device of models and batches.
        batch: number of rows of a global batch.
        dim: E, the embedding dimension.
        most_rows: largest number of rows of a table. None means the published cardinalities.
        steps: number of steps in a turn.
        turns: number of turns. In each turn, every contender runs `steps` steps.
        measures: True if the benchmark measures figures, which requires a GPU.
    """

    device: torch.device
    batch: int
    dim: int
    most_rows: int | None
    steps: int
    turns: int
    measures: bool

    @property
    def cardinalities(self) -> list[int]:
        return capped(self.most_rows)

    def machine(self) -> dict[str, Any]:
        """Returns the description of the machine from `report.machine`, and the GPU's name or None."""
        gpu = torch.cuda.get_device_name(self.device) if self.measures else None
        return {**machine(len(os.sched_getaffinity(0)), ("torch", "triton")), "gpu": gpu}

    def heading(self) -> str:
        """Returns the line that is printed above the table of results."""
        if not self.measures:
            return "There is no GPU: the benchmark runs with tiny shapes and measures nothing.\n"
        return f"{torch.cuda.get_device_name(self.device)}, batch {self.batch:,}, dim {self.dim}\n"


def read_setting(description: str | None, arguments: Sequence[str] | None) -> Setting:
    """Reads the setting from the command line.

    Call this function before kernels are imported: without a GPU, the function makes Triton interpret kernels.

    Args:
        description: docstring of the script, whose first paragraph is shown by --help.
        arguments: arguments of the command line; None means those of this process.
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer steps, smaller tables; implied without a GPU"
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        kernels.INTERPRETED = True
        torch.set_num_threads(1)
        return Setting(torch.device("cpu"), 4, 8, 20, 1, 1, measures=False)
    device = torch.device("cuda", 0)
    if options.quick:
        return Setting(device, 65_536, 128, 1_000_000, 10, 3, measures=True)
    return Setting(device, 65_536, 128, None, 30, 7, measures=True)
