"""Measures an epoch of SASRec with a sampled softmax on a GPU, beside plain torch.

    .venv/bin/python benchmarks/gpu/sequence_epoch.py [--quick]

The log, the contenders and the ratios are those of benchmarks/sequence_epoch.py; our target is 1.3. RePlay's SASRec
is measured if its environment is installed. Without a GPU, the log is tiny and nothing is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import sequence_epoch
from benchmarks.gpu.setting import read_setting
from benchmarks.report import summary_line

_TINY_SHARE = 100
_REPEATS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    share = 1 if setting.measures else _TINY_SHARE
    sizes = (sequence_epoch.USERS, sequence_epoch.ITEMS, sequence_epoch.CHOICES)
    sequences = sequence_epoch.made_up(*(size // share for size in sizes))
    print(setting.heading())
    repeats = _REPEATS if setting.measures else 1
    seconds, reasons = sequence_epoch.measure(sequences, repeats, setting.device.type, install=False)
    figures = sequence_epoch.medians(seconds)
    ratios = sequence_epoch.ratios_of(figures, reasons)
    if setting.measures:
        sequence_epoch.print_table(seconds)
        sequence_epoch.print_ratios(ratios, reasons)
    shown: dict[str, float | None] = ratios if setting.measures else dict.fromkeys(ratios)
    ours = {"seconds": figures.pop("ours")}
    peers: dict[str, dict[str, Any]] = {name: {"seconds": value} for name, value in figures.items()}
    peers |= {name: {"reason": reason} for name, reason in reasons.items()}
    print(summary_line("gpu_sequence_epoch", of_machine, ours, peers, shown, aim=sequence_epoch.AIM))
    return 0


if __name__ == "__main__":
    sys.exit(main())
