"""The type of an entry of `candidates.sources`: a source of the checkout, or one of another package.

The settings of a source of another package are checked by a type of this package
(scoring/candidates/package_sources.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from conf.plugins import SOURCE, Plugin
from conf.raw_types import Days, PositiveInt, Strict
from conf.source_types import (
    AllItems,
    Als,
    BuiltInSource,
    Covisitation,
    Ease,
    ItemKnn,
    Popular,
    Retrieval,
)


class PackageSource(Strict):
    """A source of another package (docs/extending.md), with its settings.

    All keys except those below are settings of the source. Every job checks these settings when it starts.
    """

    model_config = ConfigDict(extra="allow")

    source: str = Field(description="Name of an entry point of the group `nightrank.candidate_sources`.")
    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Only rows of this number of days, the last of which is the run date, are passed to the "
        "source. Null: the rows of all days of `splits` are passed.",
    )

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return self.source

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that the package defines, unchanged."""
        return dict(self.model_extra or {})


# The type of a source for documents.
DocumentedSource = Annotated[BuiltInSource, Field(discriminator="source")]

_PACKAGE = "package"
# Maps each source of the checkout to its module.
BUILT_IN_SOURCES: Mapping[str, str] = {
    get_args(kind.model_fields["source"].annotation)[0]: kind.__module__ for kind in get_args(BuiltInSource)
}


def source_extension(name: str) -> Plugin | None:
    """Returns the extension of another package that adds the source; None if there is none.

    Raises:
        ConfigError: two sources have the name of an installed extension.
    """
    return SOURCE.find_in_package(name, BUILT_IN_SOURCES)


def _require_known(values: Any) -> Any:
    """Raises ValueError if the checkout and all installed packages have no source of this name."""
    name = values.get("source") if isinstance(values, dict) else getattr(values, "source", None)
    if name is None:
        raise ValueError("a source needs the key `source` with its name, such as {source: popular}")
    if not isinstance(name, str) or (name not in BUILT_IN_SOURCES and source_extension(name) is None):
        raise ValueError(f"source={name!r} does not exist; known: {SOURCE.names(BUILT_IN_SOURCES)}")
    return values


def _tag(values: Any) -> str:
    """Returns the tag of a source in the union below."""
    name = values.get("source") if isinstance(values, dict) else getattr(values, "source", None)
    return str(name) if name in BUILT_IN_SOURCES else _PACKAGE


Source = Annotated[
    Annotated[AllItems, Tag("all_items")]
    | Annotated[Popular, Tag("popular")]
    | Annotated[Covisitation, Tag("covisitation")]
    | Annotated[ItemKnn, Tag("item_knn")]
    | Annotated[Ease, Tag("ease")]
    | Annotated[Als, Tag("als")]
    | Annotated[Retrieval, Tag("retrieval")]
    | Annotated[PackageSource, Tag(_PACKAGE)],
    Discriminator(_tag),
    BeforeValidator(_require_known),
]
