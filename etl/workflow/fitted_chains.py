"""Computes features from raw values with fitted chains, in Spark (engine `sql`) or in Arrow (`arrow`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import pyarrow as pa

from conf.extensions import Extension
from conf.lazy_pyspark import F, T
from etl.ops import Fitted, operator_extension, stored_fitted_type
from etl.ops.base import Type
from etl.ops.tables import LocalTables, Tables
from etl.workflow.step_outputs import require_arrays
from storage.feature_spec import Feature

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
class FittedChain:
    """A sequence of fitted steps that computes features from raw columns.

    Attributes:
        inputs: raw columns that the chain reads. Steps refer to the values of a raw column by its name.
        types: the type of each input.
        outputs: the features that the chain computes.
    """

    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    steps: tuple[Fitted, ...]
    outputs: tuple[str, ...]

    @property
    def sql_only(self) -> bool:
        """Returns whether only the engine `sql` can compute this chain for feature tables."""
        return any(step.sql_only for step in self.steps)

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
        self, arrays: Sequence[pa.Array], tables: LocalTables, dtypes: Mapping[str, str] | None = None
    ) -> dict[str, pa.Array]:
        """Computes the outputs of the chain in the engine `arrow`. Returns one array per output.

        `arrays` has one array per input.

        If the chain has only one input, and this input has strings or is dictionary-encoded, the steps
        process each distinct value only once.

        Args:
            dtypes: maps each feature to return to its dtype. If it is None, all outputs are returned with the
                types that the steps return.
        """
        encoded = arrays[0] if len(arrays) == 1 else None
        if encoded is not None and (
            isinstance(encoded, pa.DictionaryArray) or pa.types.is_string(encoded.type)
        ):
            if not isinstance(encoded, pa.DictionaryArray):
                encoded = encoded.dictionary_encode()
            distinct = pa.concat_arrays([encoded.dictionary, pa.nulls(1, encoded.dictionary.type)])
            codes = encoded.indices.fill_null(len(encoded.dictionary))
            outputs = self._run([distinct], tables, dtypes)
            return {name: output.take(codes) for name, output in outputs.items()}
        plain = [
            array.dictionary.take(array.indices) if isinstance(array, pa.DictionaryArray) else array
            for array in arrays
        ]
        return self._run(plain, tables, dtypes)

    def compute_training(
        self,
        arrays: Sequence[pa.Array],
        tables: LocalTables,
        row_ids: np.ndarray,
        dtypes: Mapping[str, str] | None = None,
    ) -> dict[str, pa.Array]:
        """Does the same as `compute`, for rows that the chain was fitted on. No array is dictionary-encoded.

        Args:
            row_ids: the positions of these rows in the training rows, shape (n,), int64.
        """
        if not self.sql_only:
            return self.compute(arrays, tables, dtypes)
        return self._run(arrays, tables, dtypes, row_ids)

    def training_values(
        self, arrays: Sequence[pa.Array], tables: LocalTables, row_ids: np.ndarray
    ) -> dict[str, pa.Array]:
        """Returns the inputs, and the outputs of all steps, of rows that the chain was fitted on."""
        return self._values(arrays, tables, row_ids)

    def _values(
        self, arrays: Sequence[pa.Array], tables: LocalTables, row_ids: np.ndarray | None
    ) -> dict[str, pa.Array]:
        values = dict(zip(self.inputs, arrays, strict=True))
        for step in self.steps:
            inputs = [values[name] for name in step.inputs]
            if row_ids is None:
                outputs = step.compute(inputs, tables)
            else:
                outputs = step.compute_training(inputs, tables, row_ids)
            require_arrays(step, outputs, len(inputs[0]))
            values |= dict(zip(step.outputs, outputs, strict=True))
        return values

    def _run(
        self,
        arrays: Sequence[pa.Array],
        tables: LocalTables,
        dtypes: Mapping[str, str] | None,
        row_ids: np.ndarray | None = None,
    ) -> dict[str, pa.Array]:
        values = self._values(arrays, tables, row_ids)
        if dtypes is None:
            return {name: values[name] for name in self.outputs}
        return {
            name: values[name].cast(FEATURE_ARROW_TYPES[dtypes[name]], safe=False)
            for name in self.outputs
            if name in dtypes
        }

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
            ConfigError: an operator does not exist here, such as one of a package that is not installed.
        """
        steps = tuple(
            stored_fitted_type(step["op"], step.get("package")).from_state(
                step["inputs"], step["outputs"], step["state"]
            )
            for step in stored["steps"]
        )
        return cls(tuple(stored["inputs"]), tuple(stored["types"]), steps, tuple(stored["outputs"]))

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickles a chain with operators of other packages as JSON values.

        So a worker that lacks the package raises the ConfigError of `from_json`, not a ModuleNotFoundError.
        """
        if any(self._extensions()):
            return FittedChain.from_json, (self.to_json(),)
        return super().__reduce_ex__(protocol)

    def _extensions(self) -> list[Extension | None]:
        """Returns, for each step, the extension that adds its operator; None for operators of etl/ops."""
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
        arrow: whether to use Python workers. If so, these workers compute all chains that are not `sql_only`
            in one pass. Spark expressions and joins compute all other chains.
    """
    in_workers = [chain for chain in chains if arrow and not chain.sql_only]
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
    row_ids: np.ndarray | None = None,
) -> dict[str, pa.Array]:
    """Computes the features in `dtypes` from raw columns. Returns one array per feature.

    The raw columns and the features are arrays of n values.

    Args:
        row_ids: for the rows that the chains were fitted on, their positions: (n,) int64. None for others.
    """
    features: dict[str, pa.Array] = {}
    for chain in chains:
        arrays = [raw[name] for name in chain.inputs]
        if row_ids is None:
            features |= chain.compute(arrays, tables, dtypes)
        else:
            features |= chain.compute_training(arrays, tables, row_ids, dtypes)
    return features
