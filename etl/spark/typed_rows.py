"""The table `typed`: the rows of a day's text log, which Spark parses once for all later steps and runs.

The engine `sql` reads the text of a day in one pass, which writes typed rows to the table. Quarantine,
profiles, statistics, features and histories are computed from these rows. A partition has one row for each
line, with these columns:

    _source, _start: the block of the line: Spark's name of the file, and the byte at which the block begins.
        They are read once, to count the lines of each block, and are equal in all lines of a block.
    _block: a hash of both.
    _index: a number that increases by one from line to line of a block. The manifest says, for each block,
        what must be added to it for the row_id and for the line number.
    _reason: the reason why the row is not used; null for a good row.
    _line: the text of a line that is quarantined, and null for every other line.
    the raw columns of the log, with the types of the configuration; null in rows of erased users.

The headers of csv files are rows, too, and are left out when the rows are read. Without a count before, it is
not known which rows they are, because blocks are read by different tasks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.raw_types import SEPARATED_FORMATS
from conf.types import Config
from etl.ops.choose_engine import choose_engine
from etl.raw.erased_rows import ERASED, erased_of_day
from etl.raw.files import RawFiles, find_raw
from etl.raw.layout_digest import layout_digest
from etl.raw.misdated import Misdated
from etl.raw.parse import (
    FILE,
    INDEX,
    LINE,
    LINE_NUMBER,
    REASON,
    SOURCE,
    START,
    read_text_blocks,
)
from etl.raw.row_ids import LinesOfBlock, block_starts, damaged_files_named
from etl.spark.read_log import add_reasons, derive_columns, read_log
from etl.workflow.feature_plan import reasons_left_out
from storage.feature_spec import EVENT_TIME, ROW_ID
from storage.manifest import Manifest, current_manifest
from storage.paths import Lake, Partition
from storage.publish import new_attempt, publish_files, rows_of, write_files
from storage.remove import is_younger, remove, written_dates

log = logging.getLogger("nightrank.etl")

# Part of the inputs of every partition. Raise it when the columns or facts change.
_FORMAT = "1"
# Rows of a file, which is one row group: about 250 MB of text in Criteo's layout.
_FILE_ROWS = 1_000_000
_BLOCK = "_block"
_STARTS = f"{_BLOCK} long, {FILE} string, _day_offset long, _file_offset long"


@dataclass(frozen=True)
class LoggedDay:
    """The rows of a day's log.

    Attributes:
        rows: the frame that `day_rows` returns.
        counted: maps each reason to the number of its rows, if they are counted already.
    """

    rows: DataFrame
    counted: Mapping[str | None, int] | None = None

    def count_reasons(self) -> Mapping[str | None, int]:
        """Returns how many rows have each reason. The key of good rows is None."""
        return self.count_rows(None)[0]

    def count_rows(self, day: tuple[int, int] | None) -> tuple[Mapping[str | None, int], Misdated]:
        """Returns how many rows have each reason, and the good rows whose event_time is outside of the day.

        Args:
            day: the bounds of the day (etl.raw.misdated); None to compare no times.
        """
        if self.counted is not None and day is None:
            return self.counted, Misdated()
        aggregates = [F.count(F.lit(1)).alias("rows")]
        if day is not None:
            time = F.col(EVENT_TIME)
            outside = F.when((time < day[0]) | (time >= day[1]), time)
            aggregates += [
                F.count(outside).alias("misdated"),
                F.min(outside).alias("earliest"),
                F.max(outside).alias("latest"),
            ]
        rows = self.rows if self.counted is None else self.rows.where(F.col(REASON).isNull())
        of_reason = {row[REASON]: row for row in rows.groupBy(REASON).agg(*aggregates).collect()}
        counted = self.counted or {reason: row["rows"] for reason, row in of_reason.items()}
        good = of_reason.get(None) if day is not None else None
        if good is None:
            return counted, Misdated()
        return counted, Misdated(good["misdated"], good["earliest"], good["latest"])


def day_rows(spark: SparkSession, config: Config, lake: Lake, raw: RawFiles) -> DataFrame:
    """Returns all rows of a day's log, with the columns of `read_log`.

    The engine `sql` reads the rows of a text log from the table `typed`, where `_line` is null for every row
    that is not quarantined. The day is parsed and published there first, unless it already is. All other logs
    are read directly.

    Raises:
        DataError, ConfigError: see etl.raw.parse.read_text_rows.
    """
    return read_day(spark, config, lake, raw).rows


def read_day(spark: SparkSession, config: Config, lake: Lake, raw: RawFiles) -> LoggedDay:
    """Returns the rows of `day_rows`, and their reasons if they were counted when the day was parsed."""
    if choose_engine(config.workflow.engine) != "sql" or config.log.format not in SEPARATED_FORMATS:
        return LoggedDay(read_log(spark, config, raw))
    partition = lake.typed.partition(raw.dt)
    manifest = _parsed_day(spark, config, partition, raw)
    starts = spark.createDataFrame(
        [(block, raw.paths[file], *offsets) for block, file, *offsets in manifest.facts["blocks"]], _STARTS
    )
    rows = rows_of(spark, partition, manifest).join(F.broadcast(starts), _BLOCK)
    numbered = rows.select(
        (F.col("_day_offset") + F.col(INDEX)).alias(ROW_ID),
        FILE,
        (F.col("_file_offset") + F.col(INDEX) + 1).alias(LINE_NUMBER),
        LINE,
        REASON,
        *config.log.names,
    )
    if config.log.format == "csv":
        numbered = numbered.where(F.col(LINE_NUMBER) > 1)
    bad = manifest.facts["reasons"]
    good = manifest.facts["rows"] - sum(bad.values())
    return LoggedDay(derive_columns(config, numbered), {**bad, **({None: good} if good else {})})


def delete_unneeded_days(config: Config, lake: Lake, first_day: str) -> None:
    """Deletes the days of the tables `typed` and `prepared` that no run needs any more.

    A day is deleted if it is before `first_day`, the first day of the run (with the section `history`, the
    first day whose clicks the run reads), and was published more than `output.grace_hours` ago. A day whose
    raw log does not exist any more is deleted at once. A later run that needs a deleted day parses it again.
    """
    grace_hours = config.output.grace_hours
    if config.split.by == "day" and config.history:
        first = date.fromisoformat(first_day) - timedelta(days=config.history.days or 0)
        first_day = first.isoformat()
    unrecorded = Lake(lake.root)  # the manifests that are read here are no inputs of the run
    for kind, table in (("typed", unrecorded.typed), ("prepared", unrecorded.prepared(config.name))):
        for dt in written_dates(table):
            partition = table.partition(dt)
            try:
                if find_raw(config, config.log, dt) is None:
                    log.info("%s rows of %s are deleted, because its raw log does not exist", kind, dt)
                    remove(partition, 0)
                elif dt < first_day and not is_younger(partition, grace_hours):
                    log.info("%s rows of %s are deleted, because runs begin with %s", kind, dt, first_day)
                    remove(partition, grace_hours)
            except (OSError, DataError) as error:  # for example, another job deletes the same day
                log.warning("%s rows of %s cannot be deleted, the next run tries again: %s", kind, dt, error)


def _parsed_day(spark: SparkSession, config: Config, partition: Partition, raw: RawFiles) -> Manifest:
    """Returns the manifest of a day. Parses the log first, unless the table has this log by these rules."""
    inputs = {"raw": raw.digest, "layout": layout_digest(config), "typed": _FORMAT}
    current = current_manifest(partition, inputs)
    if current is not None:
        return current
    lines = read_text_blocks(spark, config.log, raw.paths)
    quarantined = F.col(REASON).isNotNull() & ~F.col(REASON).isin(*reasons_left_out(config))
    columns = [F.col(name) for name in config.log.names]
    if erased_of_day(config, raw.dt) is not None:
        is_stored = F.coalesce(F.col(REASON) != ERASED, F.lit(True))
        columns = [F.when(is_stored, F.col(name)).alias(name) for name in config.log.names]
    rows = add_reasons(config, lines, raw.dt).select(
        SOURCE,
        START,
        F.xxhash64(SOURCE, START).alias(_BLOCK),
        INDEX,
        REASON,
        F.when(quarantined, F.col(LINE)).alias(LINE),
        *columns,
    )
    with damaged_files_named(raw.paths):
        files = write_files(rows, partition, new_attempt(partition), _FILE_ROWS, None, (), None)
    written = spark.read.schema(rows.schema).parquet(*(partition.file(name) for name in files))
    return publish_files(
        partition,
        files,
        inputs=inputs,
        facts=_facts(written, raw.paths, has_headers=config.log.format == "csv"),
        grace_hours=config.output.grace_hours,
    )


def _facts(rows: DataFrame, paths: Sequence[str], has_headers: bool) -> dict[str, object]:
    """Counts the lines of a day, and returns the facts for the manifest.

    Returns:
        `blocks`: for each block [its `_block`, the position of its file among `paths`, row_id minus `_index`,
            position in the file minus `_index`].
        `rows`: number of lines, without headers.
        `reasons`: maps each reason to its number of lines, without headers.
    """
    counted = (
        rows.groupBy(SOURCE, START, _BLOCK, REASON)
        .agg(F.min(INDEX).alias("low"), F.count(F.lit(1)).alias("lines"))
        .collect()
    )
    key_of: dict[tuple[str, int], int] = {}
    lines: Counter[tuple[str, int]] = Counter()
    reasons: Counter[str | None] = Counter()
    first: dict[tuple[str, int], tuple[int, str | None]] = {}  # lowest index, and the reason of this line
    for row in counted:
        place = (row[SOURCE], row[START])
        key_of[place] = row[_BLOCK]
        lines[place] += row["lines"]
        reasons[row[REASON]] += row["lines"]
        first[place] = min(first.get(place, (row["low"], row[REASON])), (row["low"], row[REASON]), key=_low)
    if len(set(key_of.values())) < len(key_of):
        raise ValueError("internal error: two blocks of a day have the same hash; please report it")
    if has_headers:
        reasons.subtract(reason for (_, start), (_, reason) in first.items() if start == 0)
    blocks = [LinesOfBlock(*place, first[place][0], count) for place, count in lines.items()]
    starts = block_starts(blocks, paths)
    file_of = {path: position for position, path in enumerate(paths)}
    return {
        "blocks": [
            [key_of[start.file, start.block], file_of[start.path], start.day_offset, start.file_offset]
            for start in starts
        ],
        "rows": sum(reasons.values()),
        "reasons": {reason: count for reason, count in reasons.items() if reason is not None and count},
    }


def _low(entry: tuple[int, str | None]) -> int:
    return entry[0]
