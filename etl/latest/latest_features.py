"""Publishes tables with the latest features of each user and of each item, up to the run date.

The history of a user contains the user's last clicks up to the run date. The columns of `last_values` contain
values of an item's last events. The job score_daily computes the scores of items from the features of users
and items. `histories_of` uses Arrow tables on one machine, and Spark frames on clusters. The results are the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import SPLITS, Config, History, JoinedTable, Split, SplitConfig
from etl.latest.item_titles import publish_titles
from etl.latest.latest_rows import PublishedRows, latest_published_rows
from etl.prepare.attributes import (
    attribute_rows,
    compares_integers,
    keyed_rows,
    needs_keys_of_log,
    plain_array,
    read_attribute_table,
)
from etl.prepare.click_tables import click_tables, clicks_of_log, clicks_of_parts, good_rows_of
from etl.prepare.histories import as_history as as_history_table
from etl.prepare.histories import lists_of_clicks, recent_clicks
from etl.prepare.last_values import ValueTables, join_values, value_tables
from etl.prepare.prepared_rows import Cuts, time_cuts
from etl.quality.checks import MissingRows, Section, require_rows
from etl.raw.erased_users import ErasedUsers, erased_of_day, erased_of_table, is_erased
from etl.raw.files import RawFiles, require_raw
from etl.raw.splits import SPLIT, assign_split, last_ranks, no_good_row
from etl.raw.text_values import integers
from etl.readers.arrow_values import one_array
from etl.spark.frame_passes import as_history, clicks_before, last_clicks
from etl.spark.raw_frames import keyed_frame, ordered_rows, read_attributes
from etl.workflow.feature_plan import FeaturePlan, history_types
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.rows import Rows, frame_of, select, unpersist
from spark.workers import LocalWorkers, Workers
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, ROW_ID, USER_KEY, FeatureSpec
from storage.manifest import Manifest, combined_digest, current_manifest, digest_of
from storage.paths import LakePaths, Partition
from storage.publish import FINITE, Rules, publish_rows


@dataclass(frozen=True)
class LatestHistories:
    """The latest histories of all users with a click.

    Attributes:
        rows: user_key and the columns of `history`, one row per user. Users without a click have no row.
            If processes of this machine computed the rows, they are a table whose lists contain dictionary
            codes; otherwise, they are a frame. None if no user has a click.
        digest: a digest of everything on which `rows` depends, except the days of the run.
    """

    rows: pa.Table | DataFrame | None
    digest: str


def histories_of(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the latest histories of a run: as a table if `workers` are LocalWorkers, otherwise as a frame.

    `latest_histories` says which clicks are in the histories, and describes the other arguments.
    """
    if isinstance(workers, LocalWorkers):
        return latest_histories_table(workers, plan, lake, splits, before=before)
    return latest_histories(workers, plan, lake, splits, before=before)


def latest_histories(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the latest histories of a run as a frame; None if the section `history` is not set.

    If `measure.against` is `test_split`, the histories contain no click of the test split. Otherwise the
    recommendations would be computed from the clicks that they must predict.

    Args:
        splits: maps each split to the raw files of its days.
        before: if set, the clicks of this split and of later splits are always left out.
    """
    history = plan.config.history
    if history is None:
        return None
    known = _known_splits(plan, before)
    earlier = clicks_before(workers, plan, lake)
    if earlier is not None:
        day_after = _day_after(splits, known)
        clicks, digest = earlier.before(day_after), earlier.digest_before(day_after)
    else:
        rows = assign_split(ordered_rows(workers, plan, splits["train"][0]), plan.config.split)
        clicks, digest = last_clicks(rows.where(F.col(SPLIT).isin(*known)), history.length), ""
    return LatestHistories(
        None if clicks is None else as_history(clicks, history), _digest(plan, known, digest)
    )


def latest_histories_table(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the result of `latest_histories` as a table. The arguments are the same."""
    history = plan.config.history
    if history is None:
        return None
    known = _known_splits(plan, before)
    earlier = click_tables(workers, plan, lake)
    clicks: pa.Table | None
    if earlier is not None:
        day_after = _day_after(splits, known)
        clicks, digest = earlier.before(day_after), earlier.digest_before(day_after)
    else:
        of_splits = _clicks_of_splits(workers, plan, splits["train"][0], len(known), history)
        clicks, digest = lists_of_clicks(of_splits), ""
    return LatestHistories(
        None if clicks is None else as_history_table(clicks, history), _digest(plan, known, digest)
    )


@dataclass(frozen=True)
class LatestValues:
    """A reader of the values of each item's last events (section `last_values`) up to a day.

    Attributes:
        tables: reads and publishes the table `last_values` of the lake.
        day_after: the first day whose events are not used.
    """

    tables: ValueTables
    day_after: str

    @property
    def digest(self) -> str:
        """Returns a digest of everything on which the last values depend."""
        return digest_of([self.tables.plan.methods, self.tables.digest_before(self.day_after)])

    def join(self, rows: Rows) -> Rows:
        """Adds the columns of `last_values` to rows with item_key. An item without a value gets nulls."""
        values = self.tables.before(self.day_after, as_frame=not isinstance(rows, pa.Table))
        return join_values(rows, values, self.tables.names, timed=False)


def latest_values(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestValues | None:
    """Returns the last values of items for a run; None without the section `last_values`.

    `latest_histories` describes the arguments, and which splits are used.
    """
    tables = value_tables(workers, plan, lake)
    return None if tables is None else LatestValues(tables, _day_after(splits, _known_splits(plan, before)))


def _known_splits(plan: FeaturePlan, before: Split | None) -> list[Split]:
    """Returns the splits whose clicks are in the histories: the first splits, in the order of `SPLITS`."""
    known = list(SPLITS[: SPLITS.index(before)] if before else SPLITS)
    if plan.config.measure.against == "test_split" and "test" in known:
        known.remove("test")
    return known


def _day_after(splits: Mapping[Split, Sequence[RawFiles]], known: Sequence[Split]) -> str:
    """Returns the day after the last day of the splits `known`, as an ISO date."""
    last = max(day.dt for split in known for day in splits[split])
    return (date.fromisoformat(last) + timedelta(days=1)).isoformat()


def _digest(plan: FeaturePlan, known: Sequence[Split], digest_of_clicks: str) -> str:
    return digest_of([plan.methods, known, digest_of_clicks])


def _clicks_of_splits(
    workers: Workers, plan: FeaturePlan, raw: RawFiles, splits: int, history: History
) -> pa.Table:
    """Returns each user's last clicks (recent_clicks) in the first splits of a log that is not stored by day.

    Args:
        workers, plan, raw: the workers, the plan of the run, and the files of the log.
        splits: the number of splits whose rows are used.
        history: the section `history` of the configuration.
    """
    by, timed = plan.config.split.by, plan.config.log.event_time is not None
    if by == "leave_last_out":
        # Each split that is left out contains at most one click per user, and it is among the user's last
        # clicks. So read a few more clicks of each user, and then remove the last clicks.
        left_out = len(SPLITS) - splits
        parts = clicks_of_log(workers, plan, raw)
        clicks = clicks_of_parts(parts, history.length + left_out, timed=timed)
        return recent_clicks(_without_last(clicks, left_out), history.length)
    if by == "fraction":
        parts = good_rows_of(
            workers, plan, raw, [USER_KEY, ITEM_KEY, LABEL, ROW_ID, *([EVENT_TIME] if timed else [])]
        )
        return _clicks_before_cut(parts, plan.config.split, splits, history.length, timed=timed)
    if by == "day":
        raise ValueError(
            "internal error, please report: with split.by=day, rows of one day cannot be divided into splits"
        )
    assert_never(by)


def _without_last(clicks: pa.Table, left_out: int) -> pa.Table:
    """Leaves out the last clicks of each user.

    A user's last click is in the test split, and the click before it is in the validation split.

    Args:
        clicks: the result of `recent_clicks`.
        left_out: number of clicks of each user to leave out: 0, 1 (the click in the test split) or 2 (also
            the click in the validation split).
    """
    users = clicks.column(USER_KEY).combine_chunks().indices.to_numpy()
    firsts = np.flatnonzero(np.diff(users, prepend=-1))
    counts = np.diff(firsts, append=len(users))
    later = np.repeat(firsts + counts, counts) - np.arange(len(users)) - 1
    return clicks.filter(pa.array(later >= left_out))


def _clicks_before_cut(
    parts: Iterator[pa.Table], config: SplitConfig, splits: int, length: int, *, timed: bool
) -> pa.Table:
    """Returns each user's last clicks in the first splits of a log with `split.by=fraction`.

    Args:
        parts: all good rows of the log.
        config: the shares of the splits.
        splits: the number of splits whose rows are used.
        length: maximum number of clicks to keep for a user.
        timed: whether the rows have event_time.

    Raises:
        DataError: there are no rows.
    """
    name = EVENT_TIME if timed else ROW_ID
    order, clicks = [np.zeros(0, np.int64)], []
    for part in parts:
        order.append(part.column(name).to_numpy())
        clicks.append(part.filter(pc.equal(part.column(LABEL), 1)))
    values = np.concatenate(order)
    if not len(values):
        raise no_good_row()
    if splits < len(SPLITS):
        cut = _cuts_of(values, config, timed)[splits - 1]
        clicks = [rows.filter(pa.array(rows.column(name).to_numpy() <= cut)) for rows in clicks]
    return clicks_of_parts(iter(clicks), length, timed=timed)


def _cuts_of(values: np.ndarray, config: SplitConfig, timed: bool) -> Cuts:
    """Returns the times (µs), or the row_ids, at which the train split and the validation split end."""
    if timed:
        return time_cuts(values, np.ones(len(values), np.int64), config) or (0.0, 0.0)
    first, second = (int(np.partition(values, rank)[rank]) for rank in last_ranks(len(values), config))
    return first, second


# The code below publishes tables with the latest features of each user and of each item, up to the run date.

_HAS_ROW = "_has_row"


@dataclass(frozen=True)
class _Side:
    """The data to publish for users or for items.

    Attributes:
        section: the section of the table of attributes: `users` or `items`.
        key: the column of the key.
        attributes: the table of attributes; None if there is none.
        columns: the features of the published rows.
        of_events: the features in `columns` that are computed only from earlier events. These are the
            features of the click history and, without a table of items, those of the last values of items.
        values: the last values of items, for the features of items; None if no feature is computed from them.
        partition: the partition to publish.
        inputs: the digests from which the partition is computed, as its manifest records them.
        current: the manifest of the partition if it was already published for these inputs; otherwise None.
    """

    section: Section
    key: str
    attributes: JoinedTable | None
    columns: list[str]
    of_events: list[str]
    values: LatestValues | None
    partition: Partition
    inputs: dict[str, str]
    current: Manifest | None


def publish_latest(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    workflow: FittedWorkflow,
    run_date: str,
    features: Sequence[Manifest],
    splits: Mapping[Split, Sequence[RawFiles]],
) -> dict[str, Manifest]:
    """Publishes the tables `users/<version>/dt=…` and `items/<version>/dt=…`, and the titles of items.

    The tables have one row per user or item, sorted by key.

    If the configuration has a table of attributes (section `users` or `items`), features are computed from
    the rows of this table. Users of the log without a row in the table have null attributes. Items of the log
    without a row have null attributes if `items.missing` is `serve`; otherwise, they are left out. The
    manifest (`facts`) has the number of users or items without a row.

    Without a table of attributes, the features of a user or item come from its latest row in the feature
    partitions. This is the row with the largest row_id on the last day with a row of the user or item.
    Features of the history (section `history`) are always computed from the latest histories, and features of
    `last_values` from the last values up to the run date. A partition that already exists for the same inputs
    is not written again.

    Args:
        workers: the processes that run the tasks.
        plan, lake: plan and data lake of the run.
        workflow: the workflow that computes the features.
        run_date: the date of the published partitions.
        features: manifests of the feature partitions of all days of the run.
        splits: maps each split to the raw files of its days.

    Returns:
        The manifest of each published partition, by section: `users` and `items`. The mapping is empty if the
        section `keys` is not set.

    Raises:
        DataError: too many users or items have no row in their table (section `quality`). Then nothing is
            published.
    """
    if plan.config.keys is None:
        return {}
    digest = combined_digest((manifest.digest for manifest in features), lake.recorder)
    inputs = {"workflow": workflow.version, "features": digest}
    histories = histories_of(workers, plan, lake, splits)
    values = latest_values(workers, plan, lake, splits)
    table = lake.features(workflow.version)
    days = [PublishedRows(table.partition(day.partition), day) for day in features]
    sides = [
        _side(plan, lake, workflow, run_date, section, inputs, histories, values)
        for section in ("users", "items")
    ]
    keyed: dict[str, KeyedAttributes] = {}

    def keys_of_log(key: str) -> Rows:
        return latest_published_rows(workers, days, key, [], workflow.spec, plan.config.workflow.engine)

    for side in sides:
        if side.attributes and side.current is None:
            of_log = keys_of_log(side.key)
            keyed[side.section] = attributes_of(workers, plan, run_date, side.section, of_log)

    def read_items() -> Rows:
        return (keyed.get("items") or _items_of(workers, plan, run_date, keys_of_log)).rows

    try:
        missing = {section: attributes.count_missing() for section, attributes in keyed.items()}
        _require_rows(plan, lake, run_date, sides, missing)
        publish_titles(plan, lake, run_date, read_items)
        published: dict[str, Manifest] = {}
        for side in sides:
            if side.current is not None:
                published[side.section] = side.current
                continue
            facts = missing[side.section].to_facts() if side.section in keyed else {}
            rows = _rows_of_side(workers, plan, workflow, side, days, keyed.get(side.section))
            if histories and side.section == "users" and side.of_events:
                rows = with_histories(rows, workflow, histories, plan, side.of_events)
                rows = select(rows, [side.key, *side.columns])
            published[side.section] = publish_rows(
                rows,
                side.partition,
                inputs=side.inputs,
                row_group_rows=plan.config.output.row_group_rows,
                facts=facts,
                rules=latest_rules(side.key, side.columns, workflow.spec),
                sort_by=side.key,
                grace_hours=plan.config.output.grace_hours,
            )
        return published
    finally:
        for attributes in keyed.values():
            attributes.release()


def _items_of(
    workers: Workers, plan: FeaturePlan, run_date: str, keys_of_log: Callable[[str], Rows]
) -> KeyedAttributes:
    """Returns the rows of the table of items. `keys_of_log` reads the distinct keys of the log."""
    of_log = keys_of_log(ITEM_KEY) if needs_log(plan, "items") else None
    return attributes_of(workers, plan, run_date, "items", of_log)


def _rows_of_side(
    workers: Workers,
    plan: FeaturePlan,
    workflow: FittedWorkflow,
    side: _Side,
    days: Sequence[PublishedRows],
    keyed: KeyedAttributes | None,
) -> Rows:
    """Returns the key and the features of users or items, except those that are computed from the history.

    Args:
        workers, plan, workflow: as in `publish_latest`.
        side: the data to publish.
        days: the feature rows of all days of the run.
        keyed: the rows of the table of attributes; None if there is none.
    """
    others = [column for column in side.columns if column not in side.of_events]
    if keyed is not None:
        rows = keyed.rows if side.values is None else side.values.join(keyed.rows)
        return encode_rows(workflow, rows, others, side.key)
    engine = plan.config.workflow.engine
    rows = latest_published_rows(workers, days, side.key, others, workflow.spec, engine)
    if side.values is None:
        return rows
    return select(with_values(rows, workflow, side.values, side.of_events), [side.key, *side.columns])


def missing_rows(published: Mapping[str, Manifest]) -> list[MissingRows]:
    """Returns how many users and items have no row in their tables, from the result of `publish_latest`."""
    of_tables = (MissingRows.from_facts(manifest.facts) for manifest in published.values())
    return [missing for missing in of_tables if missing is not None]


def _side(
    plan: FeaturePlan,
    lake: LakePaths,
    workflow: FittedWorkflow,
    run_date: str,
    section: Section,
    inputs: Mapping[str, str],
    histories: LatestHistories | None,
    values: LatestValues | None,
) -> _Side:
    """Returns the data to publish for users or for items, with the manifest if one is already published."""
    is_users = section == "users"
    scope = "user" if is_users else "item"
    table = lake.users(workflow.version) if is_users else lake.items(workflow.version)
    columns = [feature.name for feature in workflow.spec.features if feature.scope == scope]
    attributes = plan.config.users if is_users else plan.config.items
    of_history = features_of_history(plan, workflow, columns) if histories and is_users else []
    of_values = [] if is_users else features_of_values(plan, workflow, columns)
    side_inputs = dict(inputs)
    if attributes:
        raw = require_raw(plan.config, attributes, run_date, f"{section}.path", lake.recorder)
        side_inputs |= {"attributes": raw.digest, "layout": plan.layout}
        side_inputs["missing"] = missing_mode(plan.config, section)
        if compares_integers(plan.config, attributes, _keyed_by(plan, section)[1]):
            side_inputs["keys"] = "compared as integers"
    if histories and of_history:
        side_inputs["history"] = histories.digest
    if values and of_values:
        side_inputs["last_values"] = values.digest
    partition = table.partition(run_date)
    return _Side(
        section,
        USER_KEY if is_users else ITEM_KEY,
        attributes,
        columns,
        of_history if is_users or attributes else of_values,
        values if of_values else None,
        partition,
        side_inputs,
        current_manifest(partition, side_inputs),
    )


def _require_rows(
    plan: FeaturePlan,
    lake: LakePaths,
    run_date: str,
    sides: Sequence[_Side],
    counted: Mapping[str, MissingRows],
) -> None:
    """Raises DataError if too many users or items of the log have no row in their table of attributes."""
    published: dict[str, Manifest] = {
        side.section: side.current for side in sides if side.current is not None
    }
    paths: dict[str, str] = {
        side.section: require_raw(
            plan.config, side.attributes, run_date, f"{side.section}.path", lake.recorder
        ).paths[0]
        for side in sides
        if side.attributes
    }
    require_rows(plan.config.quality, [*missing_rows(published), *counted.values()], paths)


def missing_mode(config: Config, section: Section) -> Literal["serve", "leave_out"]:
    """Returns `serve` if keys of the log without a row in the table are published, otherwise `leave_out`."""
    return config.items.missing if section == "items" and config.items else "serve"


def needs_log(plan: FeaturePlan, section: Section) -> bool:
    """Returns whether the keys of the log are needed to find the key of each row in a table of attributes."""
    _, name, table = _keyed_by(plan, section)
    return needs_keys_of_log(plan.config, table, name)


def features_of_history(plan: FeaturePlan, workflow: FittedWorkflow, columns: Sequence[str]) -> list[str]:
    """Returns the features among `columns` that are computed from the history of clicks."""
    return _computed_from(plan.config.history.columns if plan.config.history else (), workflow, columns)


def features_of_values(plan: FeaturePlan, workflow: FittedWorkflow, columns: Sequence[str]) -> list[str]:
    """Returns the features among `columns` that are computed from items' last values, such as prices."""
    values = plan.config.last_values
    return _computed_from(tuple(values.new_columns) if values else (), workflow, columns)


def _computed_from(raw: Sequence[str], workflow: FittedWorkflow, columns: Sequence[str]) -> list[str]:
    """Returns the features among `columns` that are computed from one of the raw columns `raw`."""
    names = set(raw)
    computed = {output for chain in workflow.chains if names & set(chain.inputs) for output in chain.outputs}
    return [column for column in columns if column in computed]


def encode_rows(workflow: FittedWorkflow, rows: Rows, features: Sequence[str], key: str) -> Rows:
    """Computes features of rows that are not training rows. Returns these features and the column `key`.

    Args:
        workflow: the workflow that computes the features.
        rows: a table or a frame with `key` and the raw columns that the features depend on.
        features: the names of the features; may be empty.
        key: user_key or item_key.
    """
    if not isinstance(rows, pa.Table):
        return workflow.encode(rows, features, [key])
    encoded = workflow.encode_table(rows, features) if features else pa.table({})
    columns = {key: rows[key], **{name: encoded[name] for name in features}}
    return pa.table(columns)


def with_histories(
    rows: Rows,
    workflow: FittedWorkflow,
    histories: LatestHistories,
    plan: FeaturePlan,
    names: Sequence[str],
) -> Rows:
    """Adds the features `names` to `rows`.

    The features are computed from the latest histories. The rows have the column user_key. A user without a
    click has an empty history. The result is a table if `rows` and the histories are tables. Otherwise it is
    a frame.
    """
    types = history_types(plan.config.history) if plan.config.history else {}
    if isinstance(rows, pa.Table) and (histories.rows is None or isinstance(histories.rows, pa.Table)):
        lists = {
            column: _histories_of(rows, histories.rows, column, _ELEMENTS[kind])
            for column, kind in types.items()
        }
        latest = pa.table({USER_KEY: rows[USER_KEY], **lists})
        encoded = encode_rows(workflow, latest, names, USER_KEY)
        for name in names:
            rows = rows.append_column(name, encoded[name])
        return rows
    frames = [frame for frame in (rows, histories.rows) if isinstance(frame, DataFrame)]
    session = frames[0].sparkSession
    frame = frame_of(session, rows)
    joined = frame.select(USER_KEY)
    if histories.rows is not None:
        joined = joined.join(frame_of(session, histories.rows), USER_KEY, "left")
    for column, kind in types.items():
        empty = F.array().cast(f"array<{_SQL_ELEMENTS[kind]}>")
        joined = joined.withColumn(column, empty if histories.rows is None else F.coalesce(column, empty))
    return frame.join(workflow.encode(joined, names, [USER_KEY]), USER_KEY)


def with_values(rows: Rows, workflow: FittedWorkflow, values: LatestValues, names: Sequence[str]) -> Rows:
    """Adds the features `names`, which are computed from the last values of items alone.

    The rows have the column item_key. The result is a table if `rows` is a table and processes of this
    machine read the values. Otherwise it is a frame.
    """
    joined = values.join(select(rows, [ITEM_KEY]))
    encoded = encode_rows(workflow, joined, names, ITEM_KEY)
    if isinstance(rows, pa.Table) and isinstance(encoded, pa.Table):
        for name in names:
            rows = rows.append_column(name, encoded[name])
        return rows
    frames = [frame for frame in (rows, encoded) if isinstance(frame, DataFrame)]
    session = frames[0].sparkSession
    return frame_of(session, rows).join(frame_of(session, encoded), ITEM_KEY)


# The types of the elements in the list columns of a history.
_ELEMENTS = {"strings": pa.string(), "ints": pa.int64()}
_SQL_ELEMENTS = {"strings": "string", "ints": "bigint"}


def _histories_of(rows: pa.Table, histories: pa.Table | None, column: str, element: pa.DataType) -> pa.Array:
    """Returns the history of each of n users: an array of n lists, without nulls.

    Args:
        rows: n rows with the column user_key.
        histories: rows with user_key and the column `column`; None if there are none.
        column: the column with the histories.
        element: the type of the elements of the lists.
    """
    empty = pa.array([[]], pa.list_(element))
    if histories is None:
        return empty.take(pa.array(np.zeros(len(rows), np.int64)))
    lists = one_array(histories[column])
    positions = attribute_rows(rows[USER_KEY], histories[USER_KEY], USER_KEY)
    return pa.concat_arrays([lists.cast(empty.type), empty]).take(positions.fill_null(len(lists)))


@dataclass(frozen=True)
class KeyedAttributes:
    """The attributes of users or of items, with their keys.

    Attributes:
        section: the section of the table: `users` or `items`.
        rows: a table or a frame with the key (user_key or item_key) and the columns of the table of
            attributes.
        of_log: the keys of the log, as a table or a frame like `rows`. Its second column is null for a key
            without a row in the table of attributes. `of_log` is None if the log was not compared with this
            table.
    """

    section: Section
    rows: Rows
    of_log: Rows | None = None

    def count_missing(self) -> MissingRows:
        """Counts the keys of the log without a row in the table of attributes.

        If `of_log` is a frame, Spark keeps it in memory until `release` is called.
        """
        if self.of_log is None:
            raise ValueError("internal error, please report: the log was not compared with the table")
        if isinstance(self.of_log, pa.Table):
            return MissingRows(self.section, len(self.of_log), self.of_log[_HAS_ROW].null_count)
        counted = self.of_log.persist().agg(F.count(F.lit(1)), F.count(_HAS_ROW)).collect()[0]
        return MissingRows(self.section, counted[0], counted[0] - counted[1])

    def release(self) -> None:
        """Frees the memory in which Spark keeps `of_log`."""
        if self.of_log is not None:
            unpersist(self.of_log)


def attributes_of(
    workers: Workers, plan: FeaturePlan, run_date: str, section: Section, of_log: Rows | None = None
) -> KeyedAttributes:
    """Returns the rows of the table of attributes (section `users` or `items`) with their keys.

    The rows are an Arrow table if `workers` are processes of this machine and `of_log` is not a frame.
    Otherwise they are a frame. `keyed_attributes` describes the other arguments.
    """
    if isinstance(workers, LocalWorkers) and (of_log is None or isinstance(of_log, pa.Table)):
        return keyed_table(plan, run_date, section, of_log)
    return keyed_attributes(workers.spark, plan, run_date, section, of_log)


def keyed_table(
    plan: FeaturePlan, run_date: str, section: Section, of_log: pa.Table | None = None
) -> KeyedAttributes:
    """Does the same as `keyed_attributes`, but reads the rows in this process, as an Arrow table."""
    key, name, table = _keyed_by(plan, section)
    raw_rows = read_attribute_table(plan.config, table, name, section, run_date, name)
    keys = None if of_log is None else of_log.select([key])
    if keys is not None and section == "users":
        keys = _table_without(keys, erased_of_day(plan.config, run_date))
    rows = keyed_rows(plan.config, table, raw_rows, name, key, keys)
    if section == "users":
        rows = _table_without(rows, erased_of_table(plan.config, table, run_date))
    if keys is None:
        return KeyedAttributes(section, rows)
    positions = attribute_rows(keys[key], rows[key], key)
    has_row = pc.if_else(positions.is_valid(), True, pa.scalar(None, pa.bool_()))
    compared = keys.append_column(_HAS_ROW, has_row)
    if missing_mode(plan.config, section) == "serve":
        missing = keys[key].filter(positions.is_null()).combine_chunks()
        columns = {
            field.name: pa.nulls(len(missing), field.type)
            if field.name != name
            else _typed_keys(missing, field.type)
            for field in rows.schema
        }
        added = pa.table({**columns, key: missing.cast(pa.string())}, rows.schema)
        rows = pa.concat_tables([rows, added])
    return KeyedAttributes(section, rows, compared)


def _typed_keys(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts keys of the log to the type that the key has in a table of attributes."""
    texts = keys.cast(pa.string())
    of_table = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = integers(texts) if pa.types.is_integer(of_table) else texts
    return values.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else values


def _table_without(rows: pa.Table, erased: ErasedUsers | None) -> pa.Table:
    """Leaves out the rows of erased users."""
    return rows if erased is None else rows.filter(pa.array(~erased.are_in(plain_array(rows[USER_KEY]))))


def _keyed_by(plan: FeaturePlan, section: Section) -> tuple[str, str, JoinedTable]:
    """Returns the key of a section (user_key or item_key), the raw column of the key, and the table."""
    table = plan.config.users if section == "users" else plan.config.items
    if table is None or plan.config.keys is None:
        raise ValueError(f"internal error, please report: the section {section} is not set")
    if section == "users":
        return USER_KEY, plan.config.keys.user, table
    return ITEM_KEY, plan.config.keys.item, table


def keyed_attributes(
    spark: SparkSession,
    plan: FeaturePlan,
    run_date: str,
    section: Section,
    of_log: Rows | None = None,
) -> KeyedAttributes:
    """Returns the rows of the table of attributes (section `users` or `items`) with keys.

    Users of the log without a row in the table get a row whose attributes are null. Items without a row get
    such a row if `items.missing` is `serve`.

    Args:
        spark, plan: session and plan of the run. The configuration must have this section and the section
            `keys`.
        run_date: the date that replaces `{date}` in the table's path.
        section: the section of the table to read.
        of_log: rows with the distinct user_key or item_key of the log. If it is None, only rows of the table
            are used.
    """
    key, name, table = _keyed_by(plan, section)
    raw_rows = read_attributes(spark, plan.config, table, name, section, run_date, name)
    keys = None if of_log is None else frame_of(spark, of_log).select(key)
    if keys is not None and section == "users":
        keys = _without(keys, erased_of_day(plan.config, run_date))
    rows = keyed_frame(plan.config, table, raw_rows, name, key, keys)
    if section == "users":
        rows = _without(rows, erased_of_table(plan.config, table, run_date))
    if keys is None:
        return KeyedAttributes(section, rows)
    compared = keys.join(rows.select(key, F.lit(True).alias(_HAS_ROW)), key, "left")
    if missing_mode(plan.config, section) == "serve":
        nulls = (
            (F.col(key) if field.name == name else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in rows.schema
            if field.name != key
        )
        rows = rows.unionByName(compared.where(F.col(_HAS_ROW).isNull()).select(key, *nulls))
    return KeyedAttributes(section, rows, compared)


def _without(rows: DataFrame, erased: ErasedUsers | None) -> DataFrame:
    """Leaves out the rows of erased users."""
    return rows if erased is None else rows.where(~is_erased(F.col(USER_KEY), erased))


def latest_rules(key: str, columns: Sequence[str], spec: FeatureSpec) -> Rules:
    """Returns the rules for rows of users or items: only lists may be null, and numbers must be finite."""
    lists = {feature.name for feature in spec.multi_hot}
    not_null = [key, *(name for name in columns if name not in lists)]
    return Rules(not_null, {feature.name: FINITE for feature in spec.dense if feature.name in columns})
