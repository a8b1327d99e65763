"""The outcome of a rank, which Spark sends to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conf.errors import NightrankError


@dataclass(frozen=True)
class Outcome:
    """What a rank returns: the description of the trained model, or the error that ended the rank.

    Spark's Python worker and the driver unpickle this object. This module therefore imports no slow modules
    such as torch.

    Attributes:
        description: the content of the model's model.json; None after an error.
        error: the typed error that ended the rank.
        problem: the text of any other error, with its traceback.
        lost_peer: True if `problem` only reports that another rank was lost.
    """

    description: dict[str, Any] | None = None
    error: NightrankError | None = None
    problem: str = ""
    lost_peer: bool = False
