"""Triton kernels for what a GPU does badly one operation at a time: lookups, their update, and the dot interaction.

Each has a plain counterpart in torch, which CPUs use; results are the same but for rounding. Triton is imported when the
first kernel is asked for, never before: its import costs each rank a second. Under TRITON_INTERPRET=1, Triton's own switch,
the kernels run on CPU tensors too, slowly, which is how tests hold them against NumPy where there is no GPU.

Notation: B rows of a batch, C features made of ids, W columns of ids, R rows of the table, E numbers a row, N lookups.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch


def available(device: torch.device) -> bool:
    """Whether the kernels run on tensors of this device: on a GPU, and on CPUs where Triton interprets."""
    if device.type == "cpu":
        return os.environ.get("TRITON_INTERPRET") == "1"
    return device.type == "cuda" and find_spec("triton") is not None
