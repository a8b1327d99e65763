"""Architectures used only by benchmarks. They are added to the search path of training.models."""

from __future__ import annotations

import sys
from pathlib import Path

import training.models

FOLDER = str(Path(__file__).parent)


def make_known() -> None:
    """Adds this folder to the architectures of the process, so that `architecture: null` can be used."""
    if FOLDER not in training.models.__path__:
        training.models.__path__.append(FOLDER)
    sys.path_importer_cache.pop(FOLDER, None)
