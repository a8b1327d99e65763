"""Model architectures that only benchmarks use. They are found through the search path of training.models."""

from __future__ import annotations

import sys
from pathlib import Path

import training.models

FOLDER = str(Path(__file__).parent)


def make_known() -> None:
    """Makes the architectures of this folder available in this process, such as `architecture: null`."""
    if FOLDER not in training.models.__path__:
        training.models.__path__.append(FOLDER)
    sys.path_importer_cache.pop(FOLDER, None)
