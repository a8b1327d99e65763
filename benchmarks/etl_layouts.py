"""The layouts in which benchmarks/etl.py measures a log: the same rows, in files of other formats.

* `days`: tab-separated text, one file a day. The first two days are train.
* `parquet`: the same days as Parquet files. Integers have 32 bits, and row groups have 100,000 rows.
* `jsonl`: the same days as JSON lines. Every line has all columns, and an empty field is null.
* `criteo`: the layout of conf/datasets/criteo.yaml as it is shipped. The log has no dates. Its text is in four gzip
  files. The first 80% of all rows are train, and the next 10% are validation. A value gets an id if it occurs at
  least 5 times.

A log is converted once, and its files stay in the cache.
"""

from __future__ import annotations

import gzip
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.contender import CATEGORICAL, COLUMNS, Day
from benchmarks.criteo_log import DayFile
from benchmarks.etl_runs import Log, log_by_day

LAYOUTS = ("days", "criteo", "parquet", "jsonl")
# Those of conf/datasets/criteo.yaml.
CRITEO_SHARES, CRITEO_MIN_COUNT = (0.8, 0.1), 5
_ROW_GROUP_ROWS = 100_000


def log_in_layout(layout: str, log: Sequence[DayFile]) -> Log:
    """Returns a log in a layout. Converts its files if they do not exist.

    Args:
        layout: one of LAYOUTS.
        log: the days of the log, as text. The converted files are beside its folder.
    """
    source = log_by_day(log)
    if layout == "days":
        return source
    if layout == "criteo":
        folder = _converted(source, layout, [f"train.tsv.{day.dt}.gz" for day in log], _compress)
        files = sorted(str(path) for path in folder.glob("train.tsv*"))
        splits = tuple(Day(name, "", name == "train") for name in ("train", "validation", "test"))
        return Log(str(folder), splits, "tsv", tuple(files), CRITEO_SHARES, CRITEO_MIN_COUNT)
    names = [f"dt={day.dt}/clicks.{layout}" for day in log]
    folder = _converted(source, layout, names, _write_parquet if layout == "parquet" else _write_json_lines)
    days = tuple(replace(day, file=str(folder / name)) for day, name in zip(source.days, names, strict=True))
    path = f"log.path={{data}}/dt={{date}}/clicks.{layout}"
    return Log(str(folder), days, layout, overrides=(f"log.format={layout}", path))


def _converted(log: Log, layout: str, names: Sequence[str], convert: Callable[[str, Path], None]) -> Path:
    """Returns the folder of the converted files, which have these names. Converts the files if it does not exist."""
    source = Path(log.data)
    folder = source.with_name(f"{source.name}-{layout}")
    if not folder.exists():
        attempt = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
        for day, name in zip(log.days, names, strict=True):
            (attempt / name).parent.mkdir(parents=True, exist_ok=True)
            convert(day.file, attempt / name)
        attempt.rename(folder)
    return folder


def _compress(file: str, target: Path) -> None:
    with open(file, "rb") as text, gzip.open(target, "wb", compresslevel=6) as compressed:
        shutil.copyfileobj(text, compressed, 1 << 22)


def _write_parquet(file: str, target: Path) -> None:
    pq.write_table(_read(file, pa.int32()), target, compression="zstd", row_group_size=_ROW_GROUP_ROWS)


def _write_json_lines(file: str, target: Path) -> None:
    with target.open("wb") as output:
        for batch in _read(file, pa.string()).to_batches(_ROW_GROUP_ROWS):
            fields = []
            for place, (name, values) in enumerate(zip(COLUMNS, batch.columns, strict=True)):
                texts = values
                if name in CATEGORICAL:
                    texts = pc.binary_join_element_wise(pa.scalar('"'), values, pa.scalar('"'), "")
                opening = f'{"," if place else "{"}"{name}":'
                fields += [pa.scalar(opening), pc.fill_null(texts, "null")]
            lines = pc.binary_join_element_wise(*fields, pa.scalar("}\n"), "")
            output.write(b"".join(line.as_buffer() for line in lines))


def _read(file: str, integers: pa.DataType) -> pa.Table:
    """Reads a file of text. An empty field is null. The label and the integers get the type `integers`."""
    types = {name: pa.string() if name in CATEGORICAL else integers for name in COLUMNS}
    return pyarrow.csv.read_csv(
        file,
        read_options=pyarrow.csv.ReadOptions(column_names=list(COLUMNS)),
        parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True
        ),
    )
