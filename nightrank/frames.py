"""Converts frames of pandas, Polars and Arrow to Arrow tables, and results back to the same kind.

pandas and Polars are imported only if the caller has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, TypeVar, Union, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

# A function that receives each new entry of the training log, such as the loss of a step.
Report = Callable[[Mapping[str, Any]], None]
Frame: TypeAlias = Union["pd.DataFrame", "pl.DataFrame", pa.Table]
Column: TypeAlias = Union["pd.Series", "pl.Series", pa.ChunkedArray]
FrameKind = Literal["pandas", "polars", "arrow"]
Names = TypeVar("Names")
_PASS = "pass a DataFrame of pandas or Polars, or a table or record batch of Arrow"


@contextmanager
def shown_progress() -> Iterator[Report | None]:
    """Shows the progress of a training run: a bar of tqdm, with the steps, the loss and the time left.

    A bar is shown if standard error is a terminal or this process belongs to a notebook, and if tqdm is
    installed. Otherwise the `with` statement gets None instead of a function. tqdm's variable TQDM_DISABLE=1
    hides bars.
    """
    in_notebook = "ipykernel" in sys.modules
    if not (sys.stderr.isatty() or in_notebook) or find_spec("tqdm") is None:
        yield None
        return
    from tqdm import tqdm

    bars: list[Any] = []

    def show(entry: Mapping[str, Any]) -> None:
        if not bars or bars[-1].desc != entry["training"] or entry["step"] < bars[-1].n:
            for bar in bars:
                bar.close()
            bars.append(tqdm(total=entry["steps"], desc=entry["training"], unit="step", file=sys.stderr))
        bars[-1].set_postfix_str(f"loss {entry['loss']:.4f}", refresh=False)
        bars[-1].update(entry["step"] - bars[-1].n)

    try:
        yield show
    finally:
        for bar in bars:
            bar.close()


def arrow_table(rows: Frame | pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
    """Returns some columns of a frame as an Arrow table. Columns that the frame lacks are left out.

    NaN in a column of pandas becomes null. A column name of pandas that is not a string is converted to one:
    column 0 gets the name "0".

    16-bit floats become float32, because Arrow cannot compute with 16-bit floats.

    Raises:
        ConfigError: `rows` is not a frame, or two of its columns have the same name.
        DataError: the values of a column have different types, or Arrow has no type for them.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        table = rows.select(_present(columns, rows.column_names))
    elif _is_pandas(rows) or _is_polars(rows):
        labels = {str(label): label for label in rows.columns}
        names = _present(columns, [str(label) for label in rows.columns])
        convert = pa.Array.from_pandas if _is_pandas(rows) else methodcaller("to_arrow")
        table = pa.table({name: _of_series(name, rows[labels[name]], convert) for name in names})
    else:
        raise ConfigError(f"{type(rows).__module__}.{type(rows).__name__} is not a frame", _PASS)
    for index, field in enumerate(table.schema):
        if pa.types.is_float16(field.type):
            table = table.set_column(index, field.name, _as_float32(table.column(index)))
    return table


def frame_like(rows: Frame | pa.RecordBatch, result: pa.Table) -> Frame:
    """Returns a table as a frame of the same kind as `rows`. A frame of pandas keeps its index."""
    if _is_pandas(rows):
        frame = result.to_pandas()
        frame.index = rows.index
        return frame
    return sys.modules["polars"].from_arrow(result) if _is_polars(rows) else result


def kind_of(rows: object) -> FrameKind:
    """Returns the library of a frame. Raises ConfigError if it is not a frame."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return "arrow"
    if _is_pandas(rows):
        return "pandas"
    if _is_polars(rows):
        return "polars"
    raise ConfigError(f"{type(rows).__module__}.{type(rows).__name__} is not a frame", _PASS)


def as_kind(kind: FrameKind, result: pa.Table) -> Frame:
    """Returns a table as a frame of a library. Raises ConfigError if the library is not installed."""
    if kind == "arrow":
        return result
    require_packages([kind], kind, f"a frame of {kind}")
    if kind == "pandas":
        return result.to_pandas()
    import polars

    return polars.from_arrow(result)


def with_columns(rows: Frame | pa.RecordBatch, keep: Sequence[str], features: Frame) -> Frame:
    """Returns a frame with columns of `rows`, unchanged, followed by the columns of `features`.

    Args:
        rows: a frame of n rows.
        keep: names of columns of `rows`.
        features: a frame of the same kind with n rows, and with the same index if it is a frame of pandas.

    Raises:
        ConfigError: `rows` lacks one of the columns, or a feature has the name of one of them.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if not len(keep):  # a frame of Polars without columns has no rows, so `hstack` would refuse the features
        return features
    names = list(rows.column_names if isinstance(rows, pa.Table) else rows.columns)
    of_features = list(features.column_names if isinstance(features, pa.Table) else features.columns)
    require_kept(keep, names, of_features)
    if isinstance(rows, pa.Table):
        columns = [*rows.select(list(keep)).columns, *features.columns]
        return pa.Table.from_arrays(columns, names=[*keep, *of_features])
    if _is_pandas(rows) and _is_pandas(features):
        frame = features.copy(deep=False)
        for place, name in enumerate(keep):
            frame.insert(place, name, rows[name].array)
        return frame
    return cast("pl.DataFrame", rows).select(list(keep)).hstack(cast("pl.DataFrame", features))


def listed(argument: str, names: Names) -> Names:
    """Returns an argument that must be a list of names or ids.

    Raises:
        ConfigError: the argument is a single string, whose characters would count as names or ids.
    """
    if isinstance(names, str | bytes):
        raise ConfigError(f"{argument} is the text {names!r}, not a list", f"pass {argument}=[{names!r}]")
    return names


def require_kept(keep: Sequence[str], names: Sequence[object], features: Sequence[str]) -> None:
    """Raises ConfigError if a name in `keep` occurs twice, is not a column, or is the name of a feature."""
    listed("keep", keep)
    unknown = [name for name in keep if list(names).count(name) != 1 or list(keep).count(name) > 1]
    if unknown:
        raise ConfigError(
            f"`keep` contains {unknown}, but each entry must occur once and be the name of exactly one "
            "column",
            f"choose from the columns {list(names)}",
        )
    taken = [name for name in keep if name in features]
    if taken:
        raise ConfigError(
            f"`keep` contains {taken}, but features have these names",
            "rename the columns, or the features by the operator `rename`",
        )


def column_like(rows: Frame | pa.RecordBatch, name: str, result: pa.ChunkedArray) -> Column:
    """Returns a column as a series of the same library as `rows`. A series of pandas keeps the index."""
    if _is_pandas(rows):
        return sys.modules["pandas"].Series(result.to_numpy(), index=rows.index, name=name)
    return sys.modules["polars"].Series(name, result) if _is_polars(rows) else result


def decoded_like(values: Any, decode: Callable[[pa.Array], pa.Array]) -> Any:
    """Replaces the values of a column, or the elements of its lists, by decoded values.

    Args:
        values: a series of pandas or Polars, an array or column of Arrow, or a sequence.
        decode: a function that receives an array of the distinct values, and returns an array with the
            decoded value of each.

    Returns:
        A series of the same library, an array or column of Arrow, or a list. A series of pandas keeps its
        index.
    """
    arrow = values.to_arrow() if _is_series(values, "polars") else values
    if not isinstance(arrow, pa.Array | pa.ChunkedArray):
        try:
            arrow = pa.array(arrow, from_pandas=True)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"the values have different types: {error}", "pass values of one type") from error
    array = _one_array(arrow) if isinstance(arrow, pa.ChunkedArray) else arrow
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    elements = pc.list_flatten(array) if is_list else array
    distinct = elements.unique()
    replaced = decode(distinct).take(pc.index_in(elements, value_set=distinct))
    if is_list:
        sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        replaced = pa.ListArray.from_arrays(pa.array(offsets), replaced, mask=array.is_null())
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([replaced])
    if isinstance(values, pa.Array):
        return replaced
    if _is_series(values, "pandas"):
        return sys.modules["pandas"].Series(replaced.to_pylist(), values.index, object, values.name)
    if _is_series(values, "polars"):
        return sys.modules["polars"].Series(values.name, replaced)
    return replaced.to_pylist()


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _is_series(values: object, library: str) -> bool:
    return library in sys.modules and isinstance(values, sys.modules[library].Series)


def _present(wanted: Sequence[str], names: Sequence[object]) -> list[str]:
    """Returns the wanted names that are in `names`.

    Raises ConfigError if `names` contains a wanted name twice.
    """
    repeated = list(dict.fromkeys(name for name in wanted if list(names).count(name) > 1))
    if repeated:
        raise ConfigError(f"the rows have several columns named {repeated}", "rename these columns")
    return [name for name in wanted if name in names]


def _of_series(
    name: str, values: pd.Series | pl.Series, convert: Callable[[Any], pa.Array | pa.ChunkedArray]
) -> pa.Array | pa.ChunkedArray:
    try:
        return convert(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        if values.dtype == object and isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError):
            raise DataError(
                f"column {name} has values of different types: {error}", "convert the column to one type"
            ) from error
        raise DataError(
            f"column {name} (dtype {values.dtype}) cannot be converted to Arrow: {error}",
            "convert the column to integers of at most 64 bits, to floats, or to Unicode strings",
        ) from error


def _as_float32(column: pa.ChunkedArray) -> pa.Array:
    """Converts 16-bit floats to float32. A null becomes NaN, which all readers treat as null."""
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return pa.array(np.concatenate([np.zeros(0, np.float16), *chunks]).astype(np.float32), from_pandas=True)


def _is_pandas(rows: object) -> TypeGuard[pd.DataFrame]:
    return "pandas" in sys.modules and isinstance(rows, sys.modules["pandas"].DataFrame)


def _is_polars(rows: object) -> TypeGuard[pl.DataFrame]:
    return "polars" in sys.modules and isinstance(rows, sys.modules["polars"].DataFrame)


# Functions that check that optional packages are installed.


def require_packages(names: Sequence[str], extra: str, purpose: str) -> None:
    """Raises ConfigError if packages are not installed.

    Args:
        names: the packages, by the names under which they are imported.
        extra: the optional dependency of `nightrank` that installs the packages.
        purpose: the feature that needs the packages, for the message.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{purpose} needs the packages {missing}, which are not installed",
            f"pip install 'nightrank[{extra}]'",
        )


def require_torch() -> None:
    """Raises ConfigError if torch or safetensors, which models need, is not installed."""
    require_packages(("torch", "safetensors"), "models", "a model")


def require_onnx() -> None:
    """Raises ConfigError if a package that exports need, such as onnx, is not installed."""
    require_torch()
    require_packages(("onnx", "onnxscript", "onnxruntime"), "export", "an export")
