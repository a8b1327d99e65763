"""A job refit_model that SIGKILLs its process before it writes a file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from storage import file_io
from storage.paths import LakePaths
from tests.training.refit_lake import config_of, refit, without_spark


def dies_before(path_end: str, write: Callable[..., Any]) -> Callable[..., Any]:
    def dying(path: str, value: Any) -> Any:
        if path.endswith(path_end):
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, value)

    return dying


def refit_and_die(root: str, run_date: str, path_end: str) -> None:
    """Dies before it writes a file whose path ends so."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch)
        for name in ("create_json", "replace_json"):
            patch.setattr(file_io, name, dies_before(path_end, getattr(file_io, name)))
        refit(config_of(LakePaths(root)), run_date)
