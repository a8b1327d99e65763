"""Types of fields that several architectures use, and the features against which settings are checked."""

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
    """The names of a model's features.

    Attributes:
        dense, ids, lists: the features whose values are numbers, single ids, and lists of ids.
        pairs: the features of scope `pair`, of any kind. They may differ for every pair of user and item.
        items: the features whose values are single ids of the row's item.
    """

    dense: Sequence[str] = ()
    ids: Sequence[str] = ()
    lists: Sequence[str] = ()
    pairs: Sequence[str] = ()
    items: Sequence[str] = ()
