"""The FeatureSpec: the columns of feature tables and their order, for ETL, loader, models and scoring.

`pad_lists` pads lists of ids to a matrix. Programs without torch use this module too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError, DataError
from conf.types import WEIGHT_COLUMN, Keys, MultiHot, Scope
from storage import file_io, format_versions

if TYPE_CHECKING:
    import pyarrow as pa

# Reserved ids of every categorical column; valid ids lie in [0, cardinality).
PAD_ID, NULL_ID, OOV_ID = range(3)
NUM_RESERVED_IDS = 3

LABEL = "label"
WEIGHT = WEIGHT_COLUMN
ROW_ID = "row_id"
USER_KEY = "user_key"
ITEM_KEY = "item_key"
GROUP_KEY = "group_key"
EVENT_TIME = "event_time"

# The largest finite float32. The magnitude of dense features and raw numbers must not exceed it.
FLOAT32_MAX = 3.4028234663852886e38

FILE_NAME = "feature_spec.json"


def raw_keys(keys: Keys | None) -> dict[str, str]:
    """Maps the name of each key column of a feature table to its raw column.

    A key column contains the values of its raw column as strings. The result has the order of the key
    columns.
    """
    return dict(zip((USER_KEY, ITEM_KEY, GROUP_KEY), keys.columns, strict=False)) if keys else {}


@dataclass(frozen=True)
class Feature:
    """One input of a model: a column of a feature table.

    Attributes:
        scope: whether the feature depends only on the user, only on the item, only on the context, or on the
            pair of user and item.
        cardinality: the number of embedding rows, including those of the reserved ids; None for dense
            features.
    """

    name: str
    kind: Literal["dense", "categorical", "multi_hot"]
    dtype: Literal["float32", "int32", "list<int32>"]
    scope: Scope
    cardinality: int | None = None


@dataclass(frozen=True)
class FeatureSpec:
    """The features and key columns of a feature table, in table order, and the version of their workflow.

    A feature table has these columns:

    * `row_id`: int64, the position of the row in its day's raw log, unique in its partition. With the section
      `negatives`, `row_id` is position × (per_positive + 1) for a row of the log. For a negative that was
      added, `row_id` is that of its positive row plus the index of the draw, from 1.
    * `user_key`, `item_key` and `group_key`: strings, the raw ids; only if the section `keys` sets them.
    * `event_time`: int64, µs UTC; only if the configuration has `log.event_time`.
    * `label`: float32, 0 or 1.
    * `weight`: float32, above 0: the weight of the row; only if the configuration has `log.label.weights`.
      Otherwise the attribute `weight` is None, and all rows have the same weight.
    * one column per feature. Only lists of ids may be null; a null list is an empty list.
    """

    features: tuple[Feature, ...]
    key_columns: tuple[str, ...]
    workflow_version: str
    label: str = LABEL
    pad_id: int = PAD_ID
    null_id: int = NULL_ID
    oov_id: int = OOV_ID
    weight: str | None = None

    @cached_property
    def dense(self) -> tuple[Feature, ...]:
        """Returns the features that are numbers."""
        return tuple(feature for feature in self.features if feature.kind == "dense")

    @cached_property
    def categorical(self) -> tuple[Feature, ...]:
        """Returns the features with one id per row."""
        return tuple(feature for feature in self.features if feature.kind == "categorical")

    @cached_property
    def multi_hot(self) -> tuple[Feature, ...]:
        """Returns the features that are lists of ids."""
        return tuple(feature for feature in self.features if feature.kind == "multi_hot")

    @property
    def embedded(self) -> tuple[Feature, ...]:
        """Returns the features with embedding tables: first those with one id per row, then lists of ids."""
        return (*self.categorical, *self.multi_hot)

    @property
    def cardinalities(self) -> list[int]:
        """Returns the number of embedding rows of each feature, in the order of `embedded`."""
        return [int(feature.cardinality or 0) for feature in self.embedded]

    def list_lengths(self, multi_hot: MultiHot) -> list[int]:
        """Returns, for each feature that is a list of ids, the largest number of ids that a model uses.

        Args:
            multi_hot: the section `model.multi_hot` of the configuration.

        Raises:
            ConfigError: `multi_hot.lengths` names a feature that is not a list of ids.
        """
        names = [feature.name for feature in self.multi_hot]
        require_lists(multi_hot, names)
        return [multi_hot.lengths.get(name, multi_hot.max_length) for name in names]

    def scoped(self, scope: Scope) -> tuple[Feature, ...]:
        """Returns the features of one scope, in the order of the spec."""
        return tuple(feature for feature in self.features if feature.scope == scope)

    @property
    def table_columns(self) -> list[str]:
        """Returns every column of a feature table, in the order of the table."""
        return [*self.row_columns, *(feature.name for feature in self.features)]

    @property
    def row_columns(self) -> list[str]:
        """Returns the columns of a feature table that precede its features, such as keys and label."""
        return [*self.key_columns, self.label, *([self.weight] if self.weight else [])]

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as JSON values. The key `weight` is missing if rows have no weights."""
        return {name: value for name, value in asdict(self).items() if name != "weight" or value is not None}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> FeatureSpec:
        """Converts the result of `to_json` back to a spec.

        Raises:
            KeyError, TypeError, ValueError: a key is missing, or a value is wrong.
        """
        features = tuple(Feature(**feature) for feature in values["features"])
        spec = cls(**{**values, "features": features, "key_columns": tuple(values["key_columns"])})
        names = [spec.workflow_version, spec.label, *spec.key_columns, *(one.name for one in features)]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"a name is not a string: {names!r:.200}")
        format_versions.require_names(spec.workflow_version)
        sizes = [one.cardinality for one in features if one.cardinality is not None]
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"a cardinality is not an integer, or it is negative: {sizes!r:.200}")
        return spec

    def require_same(self, other: FeatureSpec, mine: str, theirs: str) -> None:
        """Raises DataError if the two specs differ. The message contains the first difference."""
        if self == other:
            return
        if self.workflow_version != other.workflow_version:
            difference = f"workflow_version {self.workflow_version} against {other.workflow_version}"
        else:
            pairs = zip(self.features, other.features, strict=False)
            difference = next(
                (f"{a} against {b}" for a, b in pairs if a != b), "the number of features or the keys"
            )
        raise DataError(
            f"{mine} and {theirs} have different features: {difference}",
            "use features and a model of the same workflow version: if the model is the champion, run "
            "build_features with --set workflow.mode=apply; otherwise train a model on these features",
        )


def dumps(spec: FeatureSpec) -> str:
    """Returns the text of a `feature_spec.json`."""
    values = file_io.with_checksum(format_versions.FEATURE_SPEC.stamp(spec.to_json()))
    return json.dumps(values, indent=1, sort_keys=True)


def loads(text: str, path: str) -> FeatureSpec:
    """Parses the text of a `feature_spec.json`. Error messages contain `path`.

    Raises:
        DataError: the file is damaged, or a newer release wrote it.
    """
    values = format_versions.FEATURE_SPEC.check(file_io.parse_json(text, path), path)
    with format_versions.FEATURE_SPEC.parsing(path):
        return FeatureSpec.from_json(values)


def require_lists(multi_hot: MultiHot, names: Sequence[str]) -> None:
    """Raises ConfigError if `multi_hot.lengths` names a feature that is not a list of ids.

    Args:
        multi_hot: the section `model.multi_hot` of the configuration.
        names: the features that are lists of ids.
    """
    unknown = sorted(set(multi_hot.lengths) - set(names))
    if unknown:
        raise ConfigError(
            f"model.multi_hot.lengths names {unknown}; the features that are lists of ids are {list(names)}",
            "name only features that are lists of ids, or write `kind: multi_hot` for the feature",
        )


def pad_lists(lists: pa.ListArray, length: int) -> NDArray[np.int32]:
    """Returns the first `length` ids of each list, padded with PAD_ID: (rows, length) int32.

    A null list is treated as an empty list.
    """
    offsets = lists.offsets.to_numpy()
    starts = offsets[:-1].astype(np.int64)
    counts = np.minimum(np.diff(offsets), length)
    if lists.null_count:
        counts = np.where(lists.is_null().to_numpy(zero_copy_only=False), 0, counts)
    columns = np.arange(length)
    filled = columns < counts[:, None]  # (rows, length)
    padded = np.full((len(lists), length), PAD_ID, dtype=np.int32)
    padded[filled] = lists.values.to_numpy()[(starts[:, None] + columns)[filled]]
    return padded
