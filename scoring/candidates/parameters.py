"""The settings of the sources (scoring/candidates/sources) that this package reads, as protocols."""

from __future__ import annotations

from typing import Literal, Protocol


class SourceParameters(Protocol):
    """The name under which a source publishes its table, and its maximum number of items for a user."""

    @property
    def name(self) -> str:
        """Returns the name of the source."""
        ...

    n: int


class SimilarItems(SourceParameters, Protocol):
    """The settings of `covisitation` and `item_knn` that similar_items.py reads."""

    clicks_per_user: int
    neighbours: int


class EaseParameters(SourceParameters, Protocol):
    """The settings of `ease`."""

    l2: float
    max_items: int


class AlsParameters(SourceParameters, Protocol):
    """The settings of `als`."""

    rank: int
    iterations: int
    regularization: float
    alpha: float
    seed: int


class SearchParameters(SourceParameters, Protocol):
    """The settings of `retrieval`."""

    search: Literal["auto", "exact", "approximate"]
    probes: int
