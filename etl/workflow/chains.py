"""Chains of operators: unfitted steps of a feature group, and fitted chains, which compute features.

Fitted chains compute features from raw values in Spark (engine `sql`) or in Arrow (engine `arrow`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError
from conf.feature_types import FeatureKind
from conf.lazy_imports import F, T
from conf.plugins import Plugin
from conf.types import FeatureGroup
from etl.operators.categorify import Categorify
from etl.ops import Fitted, Operator, Step, Type, operator_extension, operator_from_config, stored_fitted_type
from etl.ops.base import LISTS, NUMBERS
from etl.ops.tables import LocalTables, Tables
from etl.raw.text_values import over_elements
from storage.feature_spec import Feature
from storage.format_versions import typed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Chain:
    """Unfitted steps that compute features from raw columns. No step is in two chains.

    Attributes:
        inputs: raw columns that the chain reads. Steps refer to the values of a raw column by its name.
        types: the types of the inputs, in the order of `inputs`.
        kind: kind of the features: dense, categorical or multi_hot.
        outputs: names of the features, in the order of the steps. A fit may remove some features.
    """

    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    kind: FeatureKind
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class BoundGroup:
    """A feature group of the configuration, whose operators are bound to columns.

    Attributes:
        steps: the steps, in the order in which they run.
        outputs: maps each feature to its type, in the order of the features.
        ids: maps each feature to true if its values are ids of an embedding table, otherwise to false.
    """

    steps: tuple[Step, ...]
    outputs: Mapping[str, Type]
    ids: Mapping[str, bool]


def bind_group(group: FeatureGroup, columns: Mapping[str, Type]) -> BoundGroup:
    """Binds the operators of a feature group to columns, one after the other.

    Args:
        columns: maps each raw column to its type.

    Raises:
        ConfigError: a column, operator or parameter is unknown, or an operator does not accept the outputs of
            the operator before it.
    """
    unknown = [name for name in group.columns if name not in columns]
    if unknown:
        raise ConfigError(
            f"features.columns lists {unknown}, but there are no such columns",
            f"choose from the columns {sorted(columns)}",
        )
    current = {name: columns[name] for name in group.columns}
    ids = dict.fromkeys(current, False)
    steps: list[Step] = []
    for operator in (operator_from_config(entry) for entry in group.ops):
        _require_values(group, operator, ids)
        bound = operator.bind(current)
        _require_outputs(operator, bound)
        steps += bound
        ids = {
            name: operator.makes_ids or (operator.keeps_ids and all(ids[source] for source in step.inputs))
            for step in bound
            for name in step.outputs
        }
        current = {name: kind for step in bound for name, kind in step.types.items()}
    return BoundGroup(tuple(steps), current, ids)


def chains_of(group: FeatureGroup, columns: Mapping[str, Type]) -> list[Chain]:
    """Returns the chains of a feature group. Columns are in the same chain only if a step combines them.

    Raises:
        ConfigError: see `bind_group`; or a feature does not have the kind that its group declares.
    """
    bound = bind_group(group, columns)
    _require_kind(group, bound)
    sources, step_sources = _sources(group, bound.steps)
    chains = []
    for part in _connected(group, step_sources):
        inputs = tuple(name for name in group.columns if name in part)
        steps = tuple(s for s, source in zip(bound.steps, step_sources, strict=True) if source <= part)
        outputs = tuple(name for name in bound.outputs if sources[name] <= part)
        if outputs:
            chains.append(Chain(inputs, tuple(columns[name] for name in inputs), group.kind, steps, outputs))
    return chains


def _sources(
    group: FeatureGroup, steps: Sequence[Step]
) -> tuple[dict[str, frozenset[str]], list[frozenset[str]]]:
    """Returns the raw columns on which each value depends, and those on which each step's inputs depend."""
    sources = {name: frozenset([name]) for name in group.columns}
    step_sources: list[frozenset[str]] = []
    for step in steps:
        source = frozenset().union(*(sources[name] for name in step.inputs))
        step_sources.append(source)
        sources |= dict.fromkeys(step.outputs, source)
    return sources, step_sources


def _connected(group: FeatureGroup, step_sources: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Divides the group's columns into sets such that every step reads columns of only one set."""
    parts = [frozenset([name]) for name in group.columns]
    for source in step_sources:
        joined = frozenset().union(*(part for part in parts if part & source))
        parts = [part for part in parts if not part & source] + [joined]
    return sorted(parts, key=lambda part: min(group.columns.index(name) for name in part))


def _require_values(group: FeatureGroup, operator: Operator, ids: Mapping[str, bool]) -> None:
    """Raises ConfigError if ids of a vocabulary would become the values of another vocabulary.

    Ids depend on how often values occur in the training rows, so they have no meaning as values.
    """
    if any(ids.values()) and isinstance(operator, Categorify):
        entries = [entry for entry in group.ops if "categorify" in str(entry)]
        if len(entries) > 1:
            raise ConfigError(
                f"features {group.columns[:3]}: `ops` contains {len(entries)} operators categorify, but "
                "values can be encoded only once",
                "keep only one categorify in `ops` of these features",
            )


def _require_outputs(operator: Operator, steps: Sequence[Step]) -> None:
    """Raises ConfigError if a step replaces a value that a later step reads, or outputs share a name."""
    for position, step in enumerate(steps):
        read_later = {name for later in steps[position + 1 :] for name in later.inputs}
        lost = sorted(read_later & set(step.outputs))
        if lost:
            raise ConfigError(
                f"{operator.name} would replace {lost} by values computed from {list(step.inputs)}, before "
                f"it reads the original values of {lost}",
                "put `rename` first, with new names that are not in the group's columns",
            )
    names = [name for step in steps for name in step.outputs]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"{operator.name} adds columns with equal names: {names}",
            "give the columns different names, for example with `rename` before this operator",
        )


def _require_kind(group: FeatureGroup, bound: BoundGroup) -> None:
    """Raises ConfigError if a feature's type does not match the kind that its group declares."""
    label = f"features {group.columns[:3]}"
    if group.kind == "dense":
        wrong = [name for name, kind in bound.outputs.items() if kind not in NUMBERS or bound.ids[name]]
        if wrong:
            raise ConfigError(
                f"{label}: a dense feature must be a number, but {wrong} would be ids or strings",
                "set kind: categorical, or add an operator that returns numbers",
            )
        return
    allowed: Type
    if group.kind == "multi_hot":
        allowed = "ints"
    elif group.kind == "categorical":
        allowed = "int"
    else:
        assert_never(group.kind)
    wrong = [name for name, kind in bound.outputs.items() if kind != allowed or not bound.ids[name]]
    if wrong:
        lists = [name for name in wrong if bound.outputs[name] in LISTS]
        raise ConfigError(
            f"{label}: a {group.kind} feature must have ids, but the values of {wrong} would not be ids",
            "set kind: multi_hot for lists of ids, or add list_slice: {length: 3, columns: true}"
            if lists and group.kind == "categorical"
            else "add an operator that returns ids, such as ops: [{categorify: {min_count: 5}}]",
        )


# The functions below return descriptions of feature groups and chains, which are equal for equal groups and
# chains. The descriptions are used to compute digests and to compare configurations.

# Parameters that may change when a workflow is extended, because they do not change the id of any value.
_MAY_CHANGE = ("min_count", "max_size", "max_age_days")


def canonical_groups(groups: Sequence[FeatureGroup]) -> list[FeatureGroup]:
    """Returns feature groups with operators in a uniform notation and without default parameters."""
    return [
        group.model_copy(update={"ops": [operator_from_config(entry).config() for entry in group.ops]})
        for group in groups
    ]


def chain_description(chain: Chain) -> str:
    """Returns a text with all properties of a chain that must not change when its workflow is extended."""
    steps = [f"{_parameters(step.operator)} {'/'.join(step.outputs)}" for step in chain.steps]
    return f"{','.join(chain.inputs)} → {', '.join(steps)}"


def _parameters(operator: Operator) -> str:
    """Returns the operator's name and the parameters that must not change when a workflow is extended."""
    entry = operator.config()
    parameters = dict((entry.get(operator.name) or {}) if isinstance(entry, dict) else {})
    fixed = {name: value for name, value in sorted(parameters.items()) if name not in _MAY_CHANGE}
    return f"{operator.name}({', '.join(f'{name}={value}' for name, value in fixed.items())})"


# The code below computes features from raw values with fitted chains, in Spark (engine `sql`) or in Arrow
# (engine `arrow`).

SPARK_TYPES: Mapping[str, str] = {
    "int": "bigint",
    "float": "double",
    "string": "string",
    "ints": "array<bigint>",
    "strings": "array<string>",
}
FEATURE_SPARK_TYPES = {"float32": "float", "int32": "int", "list<int32>": "array<int>"}
FEATURE_ARROW_TYPES = {"float32": pa.float32(), "int32": pa.int32(), "list<int32>": pa.list_(pa.int32())}


@dataclass(frozen=True)
class RowPlace:
    """The day, the split and the ids of n rows. They decide whether the rows are training rows.

    Attributes:
        row_ids: (n,) int64, the ids of the rows: the position of a row in the log of its day, or in the frame
            on which a workflow was fitted.
        dt: the day of the rows as an ISO date; None for all rows of a frame on which a workflow was fitted.
        split: train, validation or test, if one partition of the log has several of them; otherwise None.
    """

    row_ids: np.ndarray
    dt: str | None = None
    split: str | None = None

    def is_training_row_of(self, step: Fitted) -> bool:
        """Returns whether `compute_training` computes the outputs of `step` for these rows."""
        in_training = self.dt is None or (self.dt in step.training_days and self.split in (None, "train"))
        return step.out_of_fold and in_training


@dataclass(frozen=True)
class FittedChain:
    """A sequence of fitted steps that computes features from raw columns.

    Attributes:
        inputs: raw columns that the chain reads. Steps refer to the values of a raw column by its name.
        types: the types of the inputs, in the order of `inputs`.
        outputs: the features that the chain computes.
    """

    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    steps: tuple[Fitted, ...]
    outputs: tuple[str, ...]

    @property
    def out_of_fold(self) -> bool:
        """Returns whether the features of a training row depend on its position (Fitted.out_of_fold)."""
        return any(step.out_of_fold for step in self.steps)

    @property
    def cardinalities(self) -> dict[str, int]:
        """Returns the number of embedding rows of each feature whose values are ids."""
        by_value: dict[str, int] = {}
        for step in self.steps:
            if step.cardinality is not None:
                by_value |= dict.fromkeys(step.outputs, step.cardinality)
        return {name: by_value[name] for name in self.outputs if name in by_value}

    def apply(self, rows: DataFrame, tables: Tables, tag: str) -> tuple[DataFrame, dict[str, Column]]:
        """Computes all values of the chain in the engine `sql`.

        Returns:
            The frame `rows`, joined with the tables that the steps look up, and a mapping from the name of
            each value to its Spark expression.
        """
        values = {
            name: F.col(name).cast(SPARK_TYPES[kind])
            for name, kind in zip(self.inputs, self.types, strict=True)
        }
        for index, step in enumerate(self.steps):
            inputs = [values[name] for name in step.inputs]
            rows, outputs = step.apply(rows, inputs, tables, f"{tag}{index}_")
            values |= dict(zip(step.outputs, outputs, strict=True))
        return rows, values

    def compute(
        self,
        arrays: Sequence[pa.Array],
        tables: LocalTables,
        dtypes: Mapping[str, str] | None = None,
        place: RowPlace | None = None,
    ) -> dict[str, pa.Array]:
        """Computes the outputs of the chain in the engine `arrow`. Returns one array per output.

        A step that reads only one input processes each distinct value of a dictionary-encoded input only
        once. If the chain has a single input of strings, this input is first dictionary-encoded.

        Args:
            arrays: one array of n values per input. Arrays, and the elements of lists, may be
                dictionary-encoded.
            tables: the tables that steps look up.
            dtypes: maps each feature to return to its dtype. If `dtypes` is None, all outputs are returned
                with the types that the steps return.
            place: day, split and row ids of the rows; None for rows that are not training rows.
        """
        values = self.values(arrays, tables, place)
        if dtypes is None:
            return {name: values[name].plain for name in self.outputs}
        return {
            name: _cast(values[name], FEATURE_ARROW_TYPES[dtypes[name]])
            for name in self.outputs
            if name in dtypes
        }

    def values(
        self, arrays: Sequence[pa.Array], tables: LocalTables, place: RowPlace | None = None
    ) -> dict[str, RowValues]:
        """Returns the inputs of the chain, and the outputs of all its steps, by name.

        The arguments have the same meaning as in `compute`.
        """
        encode = len(arrays) == 1
        values = {name: row_values(array, encode) for name, array in zip(self.inputs, arrays, strict=True)}
        for step in self.steps:
            inputs = [values[name] for name in step.inputs]
            values |= dict(zip(step.outputs, _outputs(step, inputs, tables, place), strict=True))
        return values

    def to_json(self) -> dict[str, Any]:
        """Returns the chain as JSON values."""
        return {
            "inputs": self.inputs,
            "types": self.types,
            "outputs": self.outputs,
            "steps": [
                {
                    "op": step.name,
                    "inputs": step.inputs,
                    "outputs": step.outputs,
                    "state": step.state(),
                    **({"package": extension.package} if extension else {}),
                }
                for step, extension in zip(self.steps, self._extensions(), strict=True)
            ],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> FittedChain:
        """Creates the chain from the result of `to_json`.

        Raises:
            ConfigError: an operator does not exist in this environment, for example because its package is
                not installed.
            KeyError, TypeError: a step does not name its operator.
        """
        for step in stored["steps"]:
            typed(step, op=str)
        steps = tuple(
            stored_fitted_type(step["op"], step.get("package")).from_state(
                step["inputs"], step["outputs"], step["state"]
            )
            for step in stored["steps"]
        )
        return cls(tuple(stored["inputs"]), tuple(stored["types"]), steps, tuple(stored["outputs"]))

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickles a chain as JSON values if it has operators of other packages.

        A worker that lacks such a package then raises the ConfigError of `from_json` instead of a
        ModuleNotFoundError.
        """
        if any(self._extensions()):
            return FittedChain.from_json, (self.to_json(),)
        return super().__reduce_ex__(protocol)

    def _extensions(self) -> list[Plugin | None]:
        """Returns, for each step, the plug-in that adds its operator; None for operators of etl/operators."""
        return [operator_extension(step.name) for step in self.steps]


def apply_chains(
    rows: DataFrame,
    chains: Sequence[FittedChain],
    features: Mapping[str, Feature],
    keep: Sequence[str],
    tables: Tables,
    arrow: bool,
) -> DataFrame:
    """Returns a frame with the columns `keep` and the features, and with one row per row of `rows`.

    Args:
        features: the features to compute, in the order and with the dtypes of the result.
        arrow: whether to use Python workers. If true, these workers compute all chains that are not
            `out_of_fold` in one pass. The `out_of_fold` chains are always computed by Spark expressions and
            joins. Python workers cannot compute them, because a batch of a frame may have rows of several
            days and splits.
    """
    in_workers = [chain for chain in chains if arrow and not chain.out_of_fold]
    values: dict[str, Column] = {}
    for index, chain in enumerate(chains):
        if chain not in in_workers:
            rows, chain_values = chain.apply(rows, tables, f"_c{index}_")
            values |= {name: chain_values[name] for name in chain.outputs if name in features}
    computed = [
        value.cast(FEATURE_SPARK_TYPES[features[name].dtype]).alias(f"_f_{name}")
        for name, value in values.items()
    ]
    if in_workers:
        rows = _in_workers(rows, in_workers, features, keep, computed, tables.local)
    else:
        rows = rows.select(*keep, *computed)
    return rows.select(*keep, *(F.col(f"_f_{name}").alias(name) for name in features))


def _in_workers(
    rows: DataFrame,
    chains: Sequence[FittedChain],
    features: Mapping[str, Feature],
    keep: Sequence[str],
    computed: Sequence[Column],
    tables: LocalTables,
) -> DataFrame:
    """Computes the features of `chains` in Python workers.

    Returns a frame with these features, the columns `keep` and the columns `computed`.
    """
    raw = {name: kind for chain in chains for name, kind in zip(chain.inputs, chain.types, strict=True)}
    inputs = rows.select(
        *(F.col(name).alias(f"_k_{name}") for name in keep),
        *computed,
        *(F.col(name).cast(SPARK_TYPES[kind]).alias(f"_r_{name}") for name, kind in raw.items()),
    )
    kept = [field for field in inputs.schema.fields if not field.name.startswith("_r_")]
    outputs = [features[name] for chain in chains for name in chain.outputs if name in features]
    schema = T.StructType(
        [*kept, *(T.StructField(f"_f_{feature.name}", _spark_type(feature.dtype)) for feature in outputs)]
    )
    names = [field.name for field in schema.fields]
    dtypes = {feature.name: feature.dtype for feature in outputs}
    encoded = inputs.mapInArrow(_encoder(tuple(chains), dtypes, len(kept), names, tables), schema)
    return encoded.select(
        *(F.col(f"_k_{name}").alias(name) for name in keep),
        *(F.col(name) for name in names if name.startswith("_f_")),
    )


def _spark_type(dtype: str) -> T.DataType:
    if dtype == "list<int32>":
        return T.ArrayType(T.IntegerType())
    return T.FloatType() if dtype == "float32" else T.IntegerType()


def _encoder(
    chains: tuple[FittedChain, ...],
    dtypes: Mapping[str, str],
    kept: int,
    names: Sequence[str],
    tables: LocalTables,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raw = {
                name[3:]: batch.column(i)
                for i, name in enumerate(batch.schema.names)
                if name.startswith("_r_")
            }
            encoded = compute_features(chains, raw, dtypes, tables)
            yield pa.RecordBatch.from_arrays([*batch.columns[:kept], *encoded.values()], names)

    return encode


def compute_features(
    chains: Sequence[FittedChain],
    raw: Mapping[str, pa.Array],
    dtypes: Mapping[str, str],
    tables: LocalTables,
    place: RowPlace | None = None,
) -> dict[str, pa.Array]:
    """Computes the features in `dtypes` from raw columns. Returns one array per feature.

    The raw columns and the features are arrays of n values.

    Args:
        place: day, split and ids of the rows. They decide whether the rows are training rows of a step. None
            for rows that are not training rows.
    """
    features: dict[str, pa.Array] = {}
    for chain in chains:
        features |= chain.compute([raw[name] for name in chain.inputs], tables, dtypes, place)
    return features


def _outputs(
    step: Fitted, inputs: Sequence[RowValues], tables: LocalTables, place: RowPlace | None
) -> list[RowValues]:
    """Runs one step.

    If all inputs are values of the same raw column, the step processes only distinct values.
    """
    trains = place is not None and place.is_training_row_of(step)
    codes = None if trains else common_codes(inputs)
    if codes is not None:
        arrays = [value.distinct for value in inputs]
    elif step.takes_codes:
        arrays = [value.encoded for value in inputs]
    else:
        arrays = [value.plain for value in inputs]
    if not step.takes_codes:
        arrays = [decoded(array) for array in arrays]
    if place is not None and trains:
        outputs = step.compute_training(arrays, tables, place.row_ids)
    else:
        outputs = step.compute(arrays, tables)
    require_arrays(step, outputs, len(arrays[0]))
    return [RowValues(output, codes) for output in outputs]


def _cast(value: RowValues, kind: pa.DataType) -> pa.Array:
    return RowValues(value.distinct.cast(kind, safe=False), value.codes).plain


# Between two steps of a chain, the values of n rows are stored either as n values, or as distinct values with
# an index for each row.
#
# Most raw columns have few distinct values. So steps process distinct values, and the features of all rows
# are gathered by index at the end. Lists may have dictionary-encoded elements. The elements are decoded only
# for steps that do not accept dictionary codes.


@dataclass(frozen=True)
class RowValues:
    """One value for each of n rows.

    Attributes:
        distinct: the values. Without `codes`, these are the n values themselves.
        codes: (n,) integers without null, the index of each row's value in `distinct`; None if `distinct` has
            one value for each row.
    """

    distinct: pa.Array
    codes: pa.Array | None = None

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return len(self.distinct if self.codes is None else self.codes)

    @cached_property
    def plain(self) -> pa.Array:
        """Returns the n values as one array."""
        return self.distinct if self.codes is None else self.distinct.take(self.codes)

    @cached_property
    def encoded(self) -> pa.Array:
        """Returns the n values: dictionary-encoded if they have codes, otherwise as a plain array."""
        if self.codes is None:
            return self.distinct
        return pa.DictionaryArray.from_arrays(self.codes, self.distinct)

    def counts(self) -> tuple[pa.Array, np.ndarray]:
        """Returns k values, and the number of rows with each value, shape (k,), int64, at least 1.

        A value may occur more than once. Nulls are included. If the values are lists, their elements are
        counted. Dictionary-encoded elements are not decoded.
        """
        values, codes = self.distinct, self.codes
        if is_list(values.type):
            if codes is not None:
                values, codes = self.plain, None
            values = pc.list_flatten(values)
        if isinstance(values, pa.DictionaryArray):
            values, codes = dictionary_with_null(values)
        if codes is None:
            return values, np.ones(len(values), np.int64)
        counts = np.bincount(codes.to_numpy(zero_copy_only=False), minlength=len(values))
        present = np.flatnonzero(counts)
        if len(present) < len(values):
            values, counts = values.take(pa.array(present)), counts[present]
        return values, counts


def row_values(array: pa.Array, encode: bool) -> RowValues:
    """Returns the values of a raw column. If `encode` is true, strings are dictionary-encoded."""
    if encode and pa.types.is_string(array.type):
        array = array.dictionary_encode()
    if isinstance(array, pa.DictionaryArray):
        return RowValues(*dictionary_with_null(array))
    return RowValues(array)


def dictionary_with_null(array: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    """Returns (values, codes) of a dictionary array.

    No code is null, because null is added as the last value.
    """
    distinct = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
    return distinct, _codes_with_null(array.indices, len(array.dictionary))


def _codes_with_null(indices: pa.Array, null: int) -> pa.Array:
    """Replaces nulls in n indices by `null`, a number above all indices.

    NumPy needs less time for this than Arrow.
    """
    if not indices.null_count or indices.type != pa.int32():
        return indices.fill_null(null)
    start, end = indices.offset, indices.offset + len(indices)
    bits, values = indices.buffers()
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=end, bitorder="little")[start:]
    codes = valid.astype(np.uint32) - np.uint32(1)  # 0 for a valid index; for null, all bits are 1
    codes |= np.frombuffer(values, np.uint32)[start:end]
    return pa.array(np.minimum(codes, np.uint32(null), out=codes).view(np.int32))


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a type is a list type."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def decoded(array: pa.Array) -> pa.Array:
    """Returns an array without dictionaries. Dictionary arrays and list elements become plain values."""
    if isinstance(array, pa.DictionaryArray):
        return array.dictionary.take(array.indices)
    if is_list(array.type) and pa.types.is_dictionary(array.type.value_type):
        return over_elements(array, decoded(pc.list_flatten(array)))
    return array


def common_codes(values: Sequence[RowValues]) -> pa.Array | None:
    """Returns the codes that all of `values` share; None if their codes differ or are missing."""
    codes = values[0].codes
    return codes if all(value.codes is codes for value in values) else None


# The results of fitted steps are checked, because operators may come from other packages.


def require_arrays(step: Fitted, outputs: Any, num_rows: int) -> None:
    """Raises ConfigError unless a step has computed one array for each output, with a value for each row."""
    arrays = outputs if isinstance(outputs, list | tuple) else []
    fits = [isinstance(array, pa.Array | pa.ChunkedArray) and len(array) == num_rows for array in arrays]
    if len(fits) != len(step.outputs) or not all(fits):
        raise ConfigError(
            f"the operator {step.name} did not compute {len(step.outputs)} Arrow arrays of {num_rows} values",
            "correct the method `compute` of its fitted step: it must return a list of one array per output",
        )
