"""The work of build_features, written for Polars.

The file of each day is read once. For each of the 26 categorical columns, the values of the train days are
counted, and the frequent ones get an id. `replace_strict` replaces values by ids, which took less CPU time
than left joins. The streaming engine writes the result as Parquet. Rows stay in memory between the fit and
the encoding. This is faster than reading the text twice, but it raises the peak memory, which is printed next
to the time. With the setting `streaming`, for logs that are larger than the memory, the streaming engine reads
the text twice instead: for the counts, and for the encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.contender import (
    CATEGORICAL,
    DENSE,
    FIRST_ID,
    LABEL,
    NULL_ID,
    OOV_ID,
    START_UP,
    WORK,
    Outcome,
    Task,
    Timing,
    run,
)


def scan(files: list[str], form: str, schema: Mapping[str, Any]) -> Any:
    """Returns the lazy rows of files of the same format, in the order of the files."""
    import polars as pl

    if form == "parquet":
        return pl.scan_parquet(files).select(pl.col(name).cast(kind) for name, kind in schema.items())
    if form == "jsonl":
        return pl.scan_ndjson(files, schema=schema)
    return pl.scan_csv(files, separator="\t", has_header=False, schema=schema, quote_char=None)


def recipe(task: Task, timing: Timing) -> Outcome:
    with timing.part(START_UP):
        import polars as pl  # polars reads POLARS_MAX_THREADS at import

    schema = {LABEL: pl.Float32, **dict.fromkeys(DENSE, pl.Int32), **dict.fromkeys(CATEGORICAL, pl.String)}
    written: dict[str, list[str]] = {}
    with timing.part(WORK):
        streaming = task.settings.get("streaming", False)
        with timing.part("read"):
            if task.shares:
                rows = scan(list(task.log), task.format, schema).collect()
                ends = task.split_ends(len(rows))
                spans = zip(task.days, [0, *ends], ends, strict=False)
                days = {split.dt: rows[start:end].lazy() for split, start, end in spans}
                del rows
            else:
                scans = {day.dt: scan([day.file], task.format, schema) for day in task.days}
                days = {dt: lines if streaming else lines.collect().lazy() for dt, lines in scans.items()}
                del scans
        with timing.part("vocabularies"):
            train = pl.concat([days[day.dt] for day in task.days if day.train])
            lazy = [
                train.select(name)
                .drop_nulls()
                .group_by(name)
                .len("count")
                .filter(pl.col("count") >= task.min_count)
                .sort("count", name, descending=[True, False])
                .select(name, pl.int_range(FIRST_ID, FIRST_ID + pl.len(), dtype=pl.Int32).alias("id"))
                for name in CATEGORICAL
            ]
            vocabularies = pl.collect_all(lazy, engine="streaming" if streaming else "auto")
            del train
        with timing.part("encode and write"):
            dense = [pl.col(name).fill_null(0).clip(0).log1p().cast(pl.Float32) for name in DENSE]
            ids = [
                pl.when(pl.col(name).is_null())
                .then(pl.lit(NULL_ID, pl.Int32))
                .otherwise(
                    pl.col(name).replace_strict(
                        known[name], known["id"], default=OOV_ID, return_dtype=pl.Int32
                    )
                )
                .alias(name)
                for name, known in zip(CATEGORICAL, vocabularies, strict=True)
            ]
            for day in task.days:
                path = str(Path(task.out) / f"{day.dt}.parquet")
                days.pop(day.dt).select(LABEL, *dense, *ids).sink_parquet(path, compression="zstd")
                written[day.dt] = [path]
    return Outcome(written)


if __name__ == "__main__":
    run(recipe)
