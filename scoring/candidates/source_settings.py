"""Reads the settings of the candidate sources from a configuration, and defines protocols for them."""

from __future__ import annotations

from typing import Literal, Protocol

from conf.errors import ConfigError
from conf.list_types import PackageSource, SourceSettings
from conf.load import read_package_settings, read_section
from conf.plugins import SOURCE, Plugin, digests_of
from conf.types import Candidates, Strict


class SourceParameters(Protocol):
    """The settings that every source has: its name, and its maximum number of items per user."""

    @property
    def name(self) -> str:
        """Returns the name of the source."""
        ...

    n: int


class SimilarItems(SourceParameters, Protocol):
    """The settings of the candidate sources `covisitation` and `item_knn` that similar_items.py reads."""

    clicks_per_user: int
    neighbours: int


class EaseParameters(SourceParameters, Protocol):
    """The settings of the candidate source `ease`."""

    l2: float
    max_items: int


class AlsParameters(SourceParameters, Protocol):
    """The settings of the candidate source `als`."""

    rank: int
    iterations: int
    regularization: float
    alpha: float
    seed: int


class SearchParameters(SourceParameters, Protocol):
    """The settings of the candidate source `retrieval`."""

    search: Literal["auto", "exact", "approximate"]
    probes: int


def read_sources(config: Candidates) -> list[tuple[Plugin, Strict]]:
    """Returns each source with its checked settings, in the order of `candidates.sources`.

    Raises:
        ConfigError: a source does not exist or cannot be imported, a key is not one of its settings, or a
            value breaks its rule.
    """
    return [read_source(source, index) for index, source in enumerate(config.sources)]


def read_source(source: SourceSettings, index: int | None = None) -> tuple[Plugin, Strict]:
    """Returns a source with its checked settings.

    Args:
        source: its section of the configuration.
        index: its position in `candidates.sources`, for error messages.

    Raises:
        ConfigError: see `read_sources`.
    """
    plugin = SOURCE.find(source.source)
    if plugin is None:
        raise ConfigError(
            f"candidates.sources: source={source.source!r} does not exist",
            "correct the name of the source, or install the package that has this source",
        )
    if not hasattr(plugin.load(), "candidates"):
        plugin.member("propose")
    if not isinstance(source, PackageSource):
        return plugin, source
    place = () if index is None else (str(index),)
    path = ("candidates", "sources", *place, source.source)
    kind: type[Strict] = plugin.settings(Strict)
    if issubclass(kind, SourceSettings):
        keys = source.model_dump(exclude_unset=True)
        remedy = (
            f"its settings are {sorted(kind.model_fields)}; correct them in the configuration file or --set"
        )
        return plugin, read_section(kind, keys, f"source {source.source}: ", remedy, path)
    return plugin, read_package_settings(plugin, source.settings, path, ("n", "window_days"))


def frames_needed_by(config: Candidates) -> bool:
    """Returns whether a source proposes (user, item) pairs. Only Spark can make lists of such pairs."""
    return any(not hasattr(plugin.load(), "candidates") for plugin, _ in read_sources(config))


def source_digests(config: Candidates) -> dict[str, str]:
    """Returns a digest of the code of each source from another package; empty if there are none.

    Raises:
        ConfigError: a source cannot be imported.
    """
    return digests_of(SOURCE.find_in_package(source.source) for source in config.sources)
