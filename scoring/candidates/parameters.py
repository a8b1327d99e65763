"""What the computations of candidates read of the settings of a source (scoring/candidates/sources)."""

from __future__ import annotations

from typing import Literal, Protocol


class SourceParameters(Protocol):
    """The name of a source in the table of what it publishes, and its largest number of items for a user."""

    @property
    def name(self) -> str:
        """Returns the name."""
        ...

    n: int


class SimilarItems(SourceParameters, Protocol):
    """The settings of `covisitation` and `item_knn`."""

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
