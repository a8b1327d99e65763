"""Reads the inputs of candidate generation.

The inputs are feature rows, users, and the tables of the section `candidates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.lazy_imports import F
from conf.list_types import WindowedSource
from conf.load import config_digest
from conf.types import Candidates, Config, NotAllowed, OutOfStock, RawTable, Split
from etl.prepare.attributes import plain_array, read_attribute_table
from etl.raw.files import require_raw
from etl.spark.raw_frames import read_attributes
from scoring.candidates.clicks import CLICK_COLUMNS, first_day, last_days
from scoring.candidates.exclusions import AttributeFilter, Exclusions, exclude, known_items
from scoring.candidates.popular import SEGMENT
from scoring.candidates.source_settings import frames_needed_by, source_digests
from scoring.feature_rows import read_split
from scoring.model.champion import serving_model_and_dataset
from scoring.model.model_info import ModelInfo, read_model_info
from spark.rows import ReadableRows, Rows, read_rows, select
from storage.dataset import Dataset, read_spec
from storage.feature_spec import EVENT_TIME, ITEM_KEY, USER_KEY
from storage.manifest import Manifest, read_manifest
from storage.run_context import RunContext
from training.registry.versions import model_path, retriever_as_of, retriever_name

USER_ATTRIBUTES = "candidates.user_attributes"


@dataclass(frozen=True)
class CandidateTables:
    """The table `users`, and the tables that the section `candidates` names. Their values are checked.

    Attributes:
        users: the manifest of the table `users` on the run date.
        filters: the filters by a user attribute.
        out_of_stock: rows with the item_key of each item that is out of stock; None if this table is not
            configured.
        segments: maps the name of each segment that a source uses to rows with the columns user_key and
            segment.
        attributes: rows with user_key and all columns of the table `user_attributes`, one row per user;
            None if this table is not configured.
        retriever: the model that the source `retrieval` uses: a separate model, or the model that ranks the
            lists; None if this source is not configured.
    """

    users: Manifest
    filters: list[AttributeFilter]
    out_of_stock: Rows | None
    segments: dict[str, Rows]
    attributes: Rows | None
    retriever: ModelInfo | None

    def inputs(self, context: RunContext, dataset: Dataset) -> dict[str, str]:
        """Returns the names and digests of all inputs of the candidates.

        The inputs include the code of sources from other packages.
        """
        return {
            "users": self.users.digest,
            "dataset": dataset.digest,
            "config": config_digest(context.config, "candidates"),
            **table_digests(context),
            **({"retriever": self.retriever.version} if self.retriever else {}),
            **source_digests(context.config.candidates),
        }


def frames_needed(config: Config) -> bool:
    """Returns whether the candidates of a configuration must be computed from Spark frames.

    This is so if a source proposes (user, item) pairs, or if a filter compares a float with a value of
    another type. Such a filter compares both values as strings, and Spark and Arrow format the same float
    differently.
    """
    candidates = config.candidates
    return frames_needed_by(candidates) or any(
        isinstance(table, NotAllowed) and _compares_floats(config, table) for table in candidates.filters
    )


def _compares_floats(config: Config, table: NotAllowed) -> bool:
    """Returns whether a filter compares users' and items' values as strings, and one side has floats."""
    attributes = config.candidates.user_attributes
    if table.rule == "at_least" or attributes is None:
        return False
    of_users = {column.name: column.type for column in attributes.columns}[table.attribute]
    of_items = {column.name: column.type for column in table.columns}[table.value]
    return of_users != of_items and "float" in (of_users, of_items)


def _read(context: RunContext, table: RawTable, key: str | list[str], section: str, id_column: str) -> Rows:
    """Reads a table of the section `candidates`, and checks its values."""
    config, dt, recorder = context.config, context.run_date, context.recorder
    if context.in_process:
        return read_attribute_table(config, table, key, section, dt, id_column, recorder)
    return read_attributes(context.spark, config, table, key, section, dt, id_column, recorder)


def _with_text(rows: Rows, column: str, name: str) -> Rows:
    """Adds the column `name`: the values of another column as strings."""
    if not isinstance(rows, pa.Table):
        return rows.withColumn(name, F.col(column).cast("string"))
    return rows.append_column(name, plain_array(rows[column]).cast(pa.string()))


def sold_out(rows: Rows, stock: str, texts: Sequence[str]) -> Rows:
    """Returns the rows of items that are out of stock. A row without a value is in stock.

    Args:
        rows: the rows of a table of items.
        stock: the column with the stock. Its values are strings if `texts` is not empty, otherwise numbers.
        texts: the values that mean that an item is out of stock.
    """
    if not isinstance(rows, pa.Table):
        return rows.where(F.col(stock).isin(*texts) if texts else F.col(stock) <= 0)
    values = plain_array(rows[stock])
    is_out = pc.is_in(values, pa.array(texts, pa.string())) if texts else pc.less_equal(values, 0)
    return rows.filter(pc.fill_null(is_out, False))


def read_candidate_tables(context: RunContext, version: str) -> CandidateTables:
    """Reads and checks the tables of candidate generation.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        version: workflow version of the table `users`.

    Raises:
        ConfigError: a segment is not a feature of scope `user` and not a column of the table
            `user_attributes`.
        DataError: a table is missing, a value breaks a rule of its table, or no retriever was trained. For a
            wrong value, the message names file, column and value.
    """
    config = context.config.candidates
    users = read_manifest(context.lake.users(version).partition(context.run_date))
    attributes = None
    if config.user_attributes is not None:
        users_table = config.user_attributes
        key = users_table.key
        rows = _read(context, users_table, key, USER_ATTRIBUTES, key)
        attributes = _with_text(rows, key, USER_KEY)
    filters: list[AttributeFilter] = []
    out_of_stock = None
    for number, table in enumerate(config.filters):
        if isinstance(table, NotAllowed):
            filters.append(_attribute_filter(context, number, table))
        elif isinstance(table, OutOfStock):
            rows = _read(context, table, table.item, _section(number), table.item)
            excluded = rows if table.stock is None else sold_out(rows, table.stock, table.sold_out)
            out_of_stock = select(_with_text(excluded, table.item, ITEM_KEY), [ITEM_KEY])
        else:
            assert_never(table)
    segments = _segments(context, version, users, attributes)
    return CandidateTables(users, filters, out_of_stock, segments, attributes, _retriever(context, version))


def candidate_rows(context: RunContext, dataset: Dataset, splits: list[Split]) -> ReadableRows:
    """Returns the feature rows of some splits.

    The columns are user_key, item_key, label and features_dt, and also event_time if the log has it, and
    weight if rows have weights.
    """
    columns = [*CLICK_COLUMNS, *([EVENT_TIME] if context.config.log.event_time else [])]
    weight = read_spec(context.lake, dataset.workflow_version).weight
    columns += [weight] if weight else []
    return read_split(context, dataset, splits, columns)


def last_counted_days(context: RunContext, dataset: Dataset, splits: list[Split]) -> tuple[str, str | None]:
    """Returns the last day of a window such as `window_days`, and the last day on which `splits` has a click.

    With split.by=day, a window ends on the run date, and the second result is the date of the last log file
    with a click. Otherwise, a split can end any number of days before the run date. So a window ends on the
    local day of the last row of `splits` that is not after the run date. The second result is None if there
    is no click.

    Raises:
        DataError: the log is not divided by days, and no row of `splits` has a time up to the run date.
    """
    config, run_date = context.config, context.run_date
    if config.split.by == "day":
        members = [member for split in splits for member in dataset.splits.get(split, ())]
        if any(member.clicks is None for member in members):  # an earlier release did not count clicks
            return run_date, run_date
        return run_date, max((member.dt for member in members if member.clicks), default=None)
    rows = candidate_rows(context, dataset, splits)
    last_row, last_click = last_days(rows, run_date, config.log.time_zone)
    if last_row is None:
        raise DataError(
            f"no row of the splits {splits} is from {run_date} or an earlier day, so "
            f"{[*config.candidates.counts_days]} of the section `candidates` would count no rows",
            "start the job with --run-date set to the date of the newest rows of the log, or remove these "
            "keys from the section `candidates`",
        )
    return last_row, last_click


def require_clicks_in_windows(config: Candidates, last_day: str, last_click: str | None) -> None:
    """Raises DataError if a built-in source with `window_days` would count no click.

    Such a source would propose no items, or items in the order of their keys.

    Args:
        config: the section `candidates`.
        last_day, last_click: the result of `last_counted_days`.
    """
    for source in config.sources:
        if not isinstance(source, WindowedSource) or source.window_days is None:
            continue
        first = first_day(source.window_days, last_day)
        if last_click is None or last_click < first:
            known = f"the last click is from {last_click}" if last_click else "they have no clicks at all"
            raise DataError(
                f"candidates.sources.{source.name}.window_days={source.window_days} counts the clicks from "
                f"{first} to {last_day}, but the splits {config.splits} have no click on these days: {known}",
                "check the log of these days, raise window_days, or add splits to candidates.splits",
            )


def users_of(context: RunContext, version: str, users: Manifest, columns: list[str] | None = None) -> Rows:
    """Reads the columns `columns` of the table `users`. By default, this is only user_key.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        version: workflow version of the table.
        users: the manifest that names the files of the table.
        columns: names of the columns.
    """
    partition = context.lake.users(version).partition(context.run_date)
    return read_rows(context, partition, users, columns=columns or [USER_KEY])


def exclusions(
    context: RunContext, dataset: Dataset, version: str, items: Rows, tables: CandidateTables
) -> Exclusions:
    """Returns the items that are excluded for each user.

    They are the items that the user clicked or saw, and the items that filters by a user attribute exclude.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        version: workflow version of the table `users`.
        items: rows with the columns item_index and item_key, one row per item.
        tables: the checked tables, which contain the users and the filters.
    """
    known, known_as = known_items(context, dataset, items)
    users = users_of(context, version, tables.users)
    return exclude(users, items, known, tables.filters, tables.attributes, known_as)


def table_digests(context: RunContext) -> dict[str, str]:
    """Returns the digests of the tables of the section `candidates`.

    The result maps the configuration key of each table to its digest.
    """
    config = context.config.candidates
    tables: dict[str, RawTable] = {_section(number): table for number, table in enumerate(config.filters)}
    if config.user_attributes is not None:
        tables[USER_ATTRIBUTES] = config.user_attributes
    return {
        name: require_raw(context.config, table, context.run_date, f"{name}.path", context.recorder).digest
        for name, table in tables.items()
    }


def _segments(context: RunContext, version: str, users: Manifest, attributes: Rows | None) -> dict[str, Rows]:
    """Reads the segments that sources use, from the table `user_attributes` or the table `users`.

    The result maps the name of each segment to rows with the columns user_key and segment.
    """
    sources = context.config.candidates.sources
    names = [name for source in sources for name in source.segments]
    spec_features = read_spec(context.lake, version).scoped("user") if names else []
    features = [feature.name for feature in spec_features]
    known = column_names(attributes) if attributes is not None else []
    segments: dict[str, Rows] = {}
    for name in names:
        if attributes is not None and name in known:
            rows = attributes
        elif name in features:
            rows = users_of(context, version, users, [USER_KEY, name])
        else:
            raise ConfigError(
                f"candidates.sources: segment={name!r} is neither a feature of scope user {features} "
                f"nor a column of {USER_ATTRIBUTES} {known}",
                "set `segment` to one of these names",
            )
        segments[name] = segment_of(rows, name)
    return segments


def segment_of(rows: Rows, name: str) -> Rows:
    """Returns the segments of users: user_key and segment, a string. Equal values give equal strings.

    Args:
        rows: rows with user_key and the column `name`, whose values are the segments.
        name: the name of the column.
    """
    if not isinstance(rows, pa.Table):
        return rows.select(USER_KEY, F.col(name).cast("string").alias(SEGMENT))
    values = plain_array(rows[name])
    if pa.types.is_list(values.type):
        texts = pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
    else:
        texts = values.dictionary_encode().indices.cast(pa.string())
    return pa.Table.from_arrays([rows[USER_KEY].combine_chunks(), texts], [USER_KEY, SEGMENT])


def column_names(rows: Rows) -> list[str]:
    """Returns the column names of the rows, which are a table or a frame."""
    return list(rows.column_names if isinstance(rows, pa.Table) else rows.columns)


def _retriever(context: RunContext, version: str) -> ModelInfo | None:
    """Returns the newest retriever (retrieval model) that was trained with this workflow version.

    If the source `retrieval` has no model of its own, returns the model that ranks the lists. Returns None if
    this source is not configured.
    """
    if context.config.candidates.retrieval is None:
        return None
    if context.config.candidates.retriever is None:
        serving, _ = serving_model_and_dataset(context)
        return serving
    trained = retriever_as_of(context.lake, context.config, context.run_date, version)
    retriever = read_model_info(
        model_path(context.lake, retriever_name(context.config), trained), context.recorder
    )
    retriever.require_spec(read_spec(context.lake, version))
    return retriever


def _attribute_filter(context: RunContext, number: int, table: NotAllowed) -> AttributeFilter:
    """Reads the table of a filter by a user attribute, and returns the filter."""
    key = [table.item] if table.rule == "at_least" else [table.item, table.value]
    rows = _read(context, table, key, _section(number), table.item)
    if table.rule == "at_least":
        missing = _first_without_value(rows, table)
        if missing is not None:
            path = require_raw(context.config, table, context.run_date, recorder=context.recorder).paths[0]
            raise DataError(
                f"{path}: {table.value} is null for {table.item}={missing!r}",
                f"give every item of the table a number in {table.value}, or remove the row of this item",
            )
    if isinstance(rows, pa.Table):
        keyed = {ITEM_KEY: plain_array(rows[table.item]).cast(pa.string()), "value": rows[table.value]}
        return AttributeFilter(table.name, table.rule, pa.table(keyed), table.attribute)
    keys = (F.col(table.item).cast("string").alias(ITEM_KEY), F.col(table.value).alias("value"))
    return AttributeFilter(table.name, table.rule, rows.select(*keys), table.attribute)


def _first_without_value(rows: Rows, table: NotAllowed) -> object:
    """Returns the smallest item_key with a null value; None if no value is null."""
    if not isinstance(rows, pa.Table):
        missing = rows.where(F.col(table.value).isNull()).orderBy(table.item).first()
        return None if missing is None else missing[table.item]
    items = plain_array(rows[table.item]).filter(rows[table.value].combine_chunks().is_null())
    return pc.min(items).as_py()


def _section(number: int) -> str:
    """Returns the configuration key of the filter with the index `number`."""
    return f"candidates.filters.{number}"
