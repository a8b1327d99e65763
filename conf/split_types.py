"""The names of the splits of the rows: train, validation and test."""

from __future__ import annotations

from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
