"""Types of fields that several architectures have, and the features that settings are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from conf.types import PositiveInt

HiddenWidths = Annotated[list[PositiveInt], Field(min_length=1)]
DropShare = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Features:
    """The names of the features that a model gets.

    Attributes:
        dense, ids, lists: numbers, single ids, lists of ids.
        pairs: features of scope `pair`, of any kind.
    """

    dense: Sequence[str] = ()
    ids: Sequence[str] = ()
    lists: Sequence[str] = ()
    pairs: Sequence[str] = ()
