"""The device of kernels in tests: a GPU if there is one, else the CPU under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from training import kernels


def device_of_kernels(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The GPU, or the CPU with kernels interpreted until the test ends."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    return torch.device("cpu")
