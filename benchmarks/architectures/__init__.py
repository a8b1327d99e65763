"""Model architectures that only benchmarks use. `make_known` adds them to the search path of training.architectures."""

from __future__ import annotations

import sys
from pathlib import Path

import training.architectures

FOLDER = str(Path(__file__).parent)


def make_known() -> None:
    """Makes the architectures of this folder, such as `null`, available in this process."""
    if FOLDER not in training.architectures.__path__:
        training.architectures.__path__.append(FOLDER)
    sys.path_importer_cache.pop(FOLDER, None)
