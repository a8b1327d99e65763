"""Fitted chains: raw values → features, by Spark expressions and joins, or on Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from etl.ops import OPERATORS, Fitted
from etl.ops.base import LISTS, Type
from etl.ops.tables import LocalTables, Tables
from storage.feature_spec import FLOAT32_MAX, Feature

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
    """Fitted steps in order.

    Attributes:
        inputs: raw columns; their values reach the steps under these names.
        types: of the inputs.
        outputs: the features it makes.
    """

    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    steps: tuple[Fitted, ...]
    outputs: tuple[str, ...]

    @property
    def sql_only(self) -> bool:
        return any(step.sql_only for step in self.steps)

    @property
    def cardinalities(self) -> dict[str, int]:
        """Feature → embedding rows, for those that are ids."""
        found: dict[str, int] = {}
        for step in self.steps:
            if step.cardinality is not None:
                found |= dict.fromkeys(step.outputs, step.cardinality)
        return {name: found[name] for name in self.outputs if name in found}

    def apply(self, rows: DataFrame, tables: Tables, tag: str) -> tuple[DataFrame, dict[str, Column]]:
        """(rows, joined where need be; value name → expression), by the sql engine."""
        values = {
            name: F.col(name).cast(SPARK_TYPES[kind])
            for name, kind in zip(self.inputs, self.types, strict=True)
        }
        for index, step in enumerate(self.steps):
            rows, made = step.apply(rows, [values[name] for name in step.inputs], tables, f"{tag}{index}_")
            values |= dict(zip(step.outputs, made, strict=True))
        return rows, values

    def compute(
        self, arrays: Sequence[pa.Array], tables: LocalTables, dtypes: Mapping[str, str] | None = None
    ) -> dict[str, pa.Array]:
        """Output → array, from one array an input, by the arrow engine.

        Where one input is dictionary-encoded or a string, each of its distinct values goes through the steps once.

        Args:
            dtypes: features to make → dtype each; without it, all outputs as the steps leave them.
        """
        coded = arrays[0] if len(arrays) == 1 else None
        if coded is not None and (isinstance(coded, pa.DictionaryArray) or pa.types.is_string(coded.type)):
            if not isinstance(coded, pa.DictionaryArray):
                coded = coded.dictionary_encode()
            distinct = pa.concat_arrays([coded.dictionary, pa.nulls(1, coded.dictionary.type)])
            codes = coded.indices.fill_null(len(coded.dictionary))
            return {name: made.take(codes) for name, made in self._run([distinct], tables, dtypes).items()}
        plain = [
            each.dictionary.take(each.indices) if isinstance(each, pa.DictionaryArray) else each
            for each in arrays
        ]
        return self._run(plain, tables, dtypes)

    def _run(
        self, arrays: Sequence[pa.Array], tables: LocalTables, dtypes: Mapping[str, str] | None
    ) -> dict[str, pa.Array]:
        values = dict(zip(self.inputs, arrays, strict=True))
        for step in self.steps:
            made = step.compute([values[name] for name in step.inputs], tables)
            values |= dict(zip(step.outputs, made, strict=True))
        if dtypes is None:
            return {name: values[name] for name in self.outputs}
        return {
            name: values[name].cast(FEATURE_ARROW_TYPES[dtypes[name]], safe=False)
            for name in self.outputs
            if name in dtypes
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "types": self.types,
            "outputs": self.outputs,
            "steps": [
                {"op": step.name, "inputs": step.inputs, "outputs": step.outputs, "state": step.state()}
                for step in self.steps
            ],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> FittedChain:
        steps = tuple(
            OPERATORS[each["op"]][1].from_state(each["inputs"], each["outputs"], each["state"])
            for each in stored["steps"]
        )
        return cls(tuple(stored["inputs"]), tuple(stored["types"]), steps, tuple(stored["outputs"]))


def apply_chains(
    rows: DataFrame,
    chains: Sequence[FittedChain],
    features: Mapping[str, Feature],
    keep: Sequence[str],
    tables: Tables,
    arrow: bool,
) -> DataFrame:
    """`keep` columns and the chains' features that are in `features`, in its order and dtypes; one row a row.

    Args:
        arrow: whether chains that can be are computed in Python workers, all in one pass; otherwise by joins.
    """
    in_workers = [chain for chain in chains if arrow and not chain.sql_only]
    values: dict[str, Column] = {}
    for index, chain in enumerate(chains):
        if chain not in in_workers:
            rows, made = chain.apply(rows, tables, f"_c{index}_")
            values |= {name: made[name] for name in chain.outputs if name in features}
    done = [
        value.cast(FEATURE_SPARK_TYPES[features[name].dtype]).alias(f"_f_{name}")
        for name, value in values.items()
    ]
    if in_workers:
        rows = _in_workers(rows, in_workers, features, keep, done, tables.local)
    else:
        rows = rows.select(*keep, *done)
    return rows.select(*keep, *(F.col(f"_f_{name}").alias(name) for name in features))


def _in_workers(
    rows: DataFrame,
    chains: Sequence[FittedChain],
    features: Mapping[str, Feature],
    keep: Sequence[str],
    done: Sequence[Column],
    tables: LocalTables,
) -> DataFrame:
    raw = {name: kind for chain in chains for name, kind in zip(chain.inputs, chain.types, strict=True)}
    passed = rows.select(
        *(F.col(name).alias(f"_k_{name}") for name in keep),
        *done,
        *(F.col(name).cast(SPARK_TYPES[kind]).alias(f"_r_{name}") for name, kind in raw.items()),
    )
    kept = [field for field in passed.schema.fields if not field.name.startswith("_r_")]
    made = [features[name] for chain in chains for name in chain.outputs if name in features]
    schema = T.StructType(
        [*kept, *(T.StructField(f"_f_{each.name}", _spark_type(each.dtype)) for each in made)]
    )
    names = [field.name for field in schema.fields]
    function = _worker(tuple(chains), {each.name: each.dtype for each in made}, len(kept), names, tables)
    encoded = passed.mapInArrow(function, schema)
    return encoded.select(
        *(F.col(f"_k_{name}").alias(name) for name in keep),
        *(F.col(name) for name in names if name.startswith("_f_")),
    )


def _spark_type(dtype: str) -> T.DataType:
    if dtype == "list<int32>":
        return T.ArrayType(T.IntegerType())
    return T.FloatType() if dtype == "float32" else T.IntegerType()


def _worker(
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
            made = compute_features(chains, raw, dtypes, tables)
            yield pa.RecordBatch.from_arrays([*batch.columns[:kept], *made.values()], names)

    return encode


def compute_features(
    chains: Sequence[FittedChain],
    raw: Mapping[str, pa.Array],
    dtypes: Mapping[str, str],
    tables: LocalTables,
) -> dict[str, pa.Array]:
    """Feature → array of its dtype, for the features in `dtypes`, from raw columns (n values each)."""
    found: dict[str, pa.Array] = {}
    for chain in chains:
        found |= chain.compute([raw[name] for name in chain.inputs], tables, dtypes)
    return found


def one_row(chains: Sequence[FittedChain], raw: Mapping[str, Any]) -> dict[str, pa.Array]:
    """The raw columns that the chains read, as arrays of one value; a missing one is null.

    Raises:
        ValueError: a value does not fit its column's type.
    """
    types = {
        "int": pa.int64(),
        "float": pa.float64(),
        "string": pa.string(),
        "ints": pa.list_(pa.int64()),
        "strings": pa.list_(pa.string()),
    }
    arrays = {}
    for chain in chains:
        for name, kind in zip(chain.inputs, chain.types, strict=True):
            value = raw.get(name)
            if kind == "string" and value is not None:
                value = str(value)
            # Arrow would cut a fraction off, and take a text apart into a list.
            if (kind == "int" and isinstance(value, float)) or (kind in LISTS and isinstance(value, str)):
                raise ValueError(f"{name}={value!r} is no {kind}")
            try:
                arrays[name] = pa.array([value], types[kind])
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise ValueError(f"{name}={value!r} is no {kind}") from error
            if (
                kind == "float" and value is not None and not abs(value) <= FLOAT32_MAX
            ):  # no row of a log has such
                raise ValueError(f"{name}={value!r} is no number within float32's range")
    return arrays


def as_number(values: pa.Array) -> float | int | list[int] | None:
    """The single value of an array, as Python has it."""
    value = values[0].as_py()
    return float(np.float32(value)) if isinstance(value, float) else value
