"""Categorify: values to the ids of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pyspark.sql import DataFrame

from conf.errors import ConfigError, InfrastructureError
from etl.ops.base import Fitted, Moments, Need, Operator
from etl.vocabulary import Vocabulary, encode


@dataclass(frozen=True)
class FittedCategorify(Fitted):
    name: ClassVar[str] = "categorify"
    vocabulary: Vocabulary
    min_count: int

    def apply(self, rows: DataFrame) -> DataFrame:
        return encode(rows, self.column, self.vocabulary)

    def state(self) -> dict[str, Any]:
        return {"min_count": self.min_count}

    @classmethod
    def from_state(
        cls, column: str, state: Mapping[str, Any], vocabulary: Vocabulary | None
    ) -> FittedCategorify:
        if vocabulary is None:
            raise InfrastructureError(
                f"the vocabulary of {column} was not loaded", "report this: it is our defect"
            )
        return cls(column, vocabulary, state["min_count"])


@dataclass(frozen=True)
class Categorify(Operator):
    """Values to ids: null to NULL_ID, values seen fewer than `min_count` times in training to OOV_ID.

    Ids from 3 on follow by descending count, ties by value (its UTF-8 bytes); an extension appends.

    | in   | out (min_count=2; training rows a a b b b c) |
    |------|----------------------------------------------|
    | b    | 3                                            |
    | a    | 4                                            |
    | c    | 2 (OOV_ID: seen once)                        |
    | zzz  | 2 (OOV_ID: never seen)                       |
    | null | 1 (NULL_ID)                                  |
    """

    name: ClassVar[str] = "categorify"
    needs: ClassVar[Need] = "counts"
    makes: ClassVar[Literal["dense", "categorical"]] = "categorical"
    min_count: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.min_count, int) or self.min_count < 1:
            raise ConfigError(
                f"categorify min_count={self.min_count!r} must be an integer of at least 1", "correct it"
            )

    def fit(self, column: str, moments: Moments | None, vocabulary: Vocabulary | None) -> FittedCategorify:
        return FittedCategorify.from_state(column, {"min_count": self.min_count}, vocabulary)
