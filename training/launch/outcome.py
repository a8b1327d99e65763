"""How a rank ended, as it travels back to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conf.errors import NightrankError


@dataclass(frozen=True)
class Outcome:
    """With the model's description, or with what went wrong.

    Spark's Python worker and the driver unpickle it, so this module imports nothing that takes long, above all not
    torch.

    Attributes:
        error: the error of our own kind that ended the rank.
        problem: text of any other error, its traceback included.
        lost_peer: whether that other error says only that another rank went away.
    """

    description: dict[str, Any] | None = None
    error: NightrankError | None = None
    problem: str = ""
    lost_peer: bool = False
