"""The reviewed list of what may stay on the CPU: allowed.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.plans.accelerator import Fallback, fallbacks
from tests.plans.recorder import Frame

LIST = Path(__file__).parent / "allowed.yaml"


@dataclass(frozen=True)
class Allowed:
    """A node that may stay on the CPU when the accelerator gives this reason, and why we accept it."""

    node: str
    reason: str
    because: str

    def covers(self, fallback: Fallback) -> bool:
        return self.node == fallback.node and re.fullmatch(self.reason, fallback.reason) is not None


def read_list(path: Path = LIST) -> list[Allowed]:
    return [Allowed(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def refused(frames: Iterable[Frame], allowed: Sequence[Allowed]) -> list[str]:
    """Every fallback that is on no list, in words, with the frame it is in."""
    messages: dict[str, None] = {}
    for frame in frames:
        for fallback in fallbacks(frame.explained):
            if not any(entry.covers(fallback) for entry in allowed):
                messages[f"{frame.name}: {fallback}"] = None
    return list(messages)


def unneeded(frames: Iterable[Frame], allowed: Sequence[Allowed]) -> list[Allowed]:
    """Entries of the list that no frame needs."""
    seen = [fallback for frame in frames for fallback in fallbacks(frame.explained)]
    return [entry for entry in allowed if not any(entry.covers(fallback) for fallback in seen)]
