"""The bases of the settings of sources of candidates, and the type of an entry of `candidates.sources`.

Sources are found by name (scoring/candidates/sources). Those of the checkout are checked when the
configuration is read. The settings of a source of another package are checked by a type of this package.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    SerializeAsAny,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, core_schema

from conf.model_types import ModelConfig
from conf.plugins import SOURCE
from conf.raw_types import Days, PositiveInt, Strict


class SourceSettings(Strict):
    """Base of the settings of all sources.

    Attributes:
        every_item: whether the source proposes every item. No other source can then be combined with it, and
            its lists have the columns of the table `candidates`, which hold null.
    """

    every_item: ClassVar[bool] = False
    source: str = Field(description="Name of the source.")

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables. All sources need different names."""
        return self.source

    @property
    def segments(self) -> list[str]:
        """Returns the segments that the source needs: features of users, or columns of user_attributes."""
        return []


class WindowedSource(SourceSettings):
    """Base of the settings of sources that count clicks of some days."""

    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Only clicks of this number of days, the last of which is the run date, are counted. "
        "Null: the clicks of all days of `splits` are counted.",
    )


class ModelSource(SourceSettings):
    """Base of the settings of a source with a model, which train_retriever trains."""

    n: PositiveInt = Field(default=200, description="Largest number of items of this source for a user.")
    model: ModelConfig = Field(
        description="The model, of an architecture with vectors of users and items: a section with the "
        "keys of `model`, or the name of a model file."
    )


class PackageSource(SourceSettings):
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
    def settings(self) -> dict[str, Any]:
        """Returns the settings that the package defines, unchanged."""
        return dict(self.model_extra or {})


def window_days(source: SourceSettings) -> int | None:
    """Returns the number of days whose rows a source counts; None if it counts those of all days."""
    days: int | None = getattr(source, "window_days", None)
    return days


def built_in_sources() -> dict[str, type[SourceSettings]]:
    """Maps the name of each source of the checkout to the type of its settings."""
    return {one.name: one.settings(SourceSettings) for one in SOURCE.plugins()}


def _require_known(values: Any) -> Any:
    """Raises ValueError if the checkout and all installed packages have no source of this name."""
    name = values.get("source") if isinstance(values, dict) else getattr(values, "source", None)
    if name is None:
        raise ValueError("a source needs the key `source` with its name, such as {source: popular}")
    if not isinstance(name, str) or SOURCE.find(name) is None:
        raise ValueError(f"source={name!r} does not exist; known: {SOURCE.names()}")
    return values


def _read(values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Reads a source with the type of its settings."""
    if isinstance(values, SourceSettings):
        return values
    plugin = SOURCE.get(values["source"])
    if plugin.package is not None:
        return _tagged(PackageSource, "package").validate_python(values)
    return _tagged(plugin.settings(SourceSettings), plugin.name).validate_python(values)


@lru_cache(maxsize=32)
def _tagged(kind: type[SourceSettings], tag: str) -> TypeAdapter[SourceSettings]:
    """Returns what reads a source. Its errors have the tag behind the number of the source."""

    def schema(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema({tag: handler(source)}, lambda values: tag)

    tagged: Any = Annotated[kind, GetPydanticSchema(schema)]
    return TypeAdapter(tagged)


Source = Annotated[SerializeAsAny[SourceSettings], WrapValidator(_read), BeforeValidator(_require_known)]
