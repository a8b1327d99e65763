"""Chooses the sections of a new configuration by the first rows of its tables."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError
from conf.names import with_any_date
from etl.inference.column_types import SampledColumn, micros_of
from etl.inference.roles import (
    LabelGuess,
    events_of,
    has_addresses,
    image_of,
    label_of,
    possible_events,
    roles_of,
    share_of_most_frequent,
    shown_items_in,
    stock_of,
    title_by_values,
    title_of,
)
from etl.inference.sample import without_days
from jobs.new_config.questions import Questions
from jobs.new_config.tables import (
    NamedColumn,
    NewFeature,
    NewTable,
    feature_of,
    key_of,
    most_frequent,
    open_new_table,
)
from storage import file_io

# Minimum number of days of a log that is read by day: a train, a validation and a test day, and a day before
# them. A log with fewer days is one table.
_FEWEST_DAYS, _MOST_TRAIN_DAYS = 4, 30
# With at most this number of items, all items are scored for each user.
_ALL_ITEMS = 20_000
_SMALL_ROWS = 200_000
# Names of files and folders that are too general for the name of a configuration.
_VAGUE_NAMES = {
    "csv",
    "tsv",
    "data",
    "raw",
    "log",
    "logs",
    "parquet",
    "train",
    "dt",
    "part",
    "events",
    "home",
    "tmp",
}
# For a log of choices, `init` writes the settings of benchmarks/lists.yaml, which were measured on several
# logs (docs/decisions/sequence-models.md#0129). The constant is the approximate number of rows that a
# training reads in all epochs. There are two to sixteen epochs, and the training takes some minutes.
_ROWS_OF_A_TRAINING = 3_200_000
_HISTORY_LENGTH = 20
# Rows count as sorted by user if each user has about one group of consecutive rows.
_SORTED_RUNS = 1.2
# A column of the log is an attribute of the item or the user if this share of its rows has the usual value.
_SAME_SHARE = 0.98
# If more than this share of the rows have no user, the configuration leaves such rows out without an error.
_FEW_ANONYMOUS = 0.005
# If there are more than `_FEW_USERS` users, and one of them has more than this share of the rows, its id
# probably stands for unknown users.
_FEW_USERS, _MOST_OF_A_USER = 20, 0.25
# If more than `_FEW_REJECTED` of the rows have no item, time or label, `quality.max_bad_share` becomes
# `_ROOM` times the share of these rows.
_FEW_REJECTED, _ROOM = 0.02, 1.5


# Maps the section of each table of attributes to the column of its key.
_Joined = dict[str, tuple[NewTable, NamedColumn]]


@dataclass(frozen=True)
class Wishes:
    """The arguments of `init`.

    Attributes:
        log, users, items: paths of the tables; None for tables that do not exist.
        user, item, time, label: columns of the log by their names in the files; None if they are inferred.
        name: name of the configuration; None for the name of the file.
        lake: folder of the lake; None for a folder next to the configuration.
        time_zone: zone of times without an offset.
        k: number of items of a list.
    """

    log: str
    users: str | None = None
    items: str | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    label: str | None = None
    name: str | None = None
    lake: str | None = None
    time_zone: str = "UTC"
    k: int = 10


@dataclass
class NewConfig:
    """A new configuration.

    Attributes:
        sections: its keys and their values, in the order of the file.
        reasons: pairs (choice, reason).
        run_date: the date for the first run.
        tables: its tables by section.
        left_out: for each column without a feature, its table, name and the reason.
        has_lists: whether lists can be made.
        notes: comments about properties of the log. The keys are the sections above which the comments are
            written.
        inactive_filter: a filter of candidates that is written as a comment, with the reason; None if there
            is none.
    """

    sections: dict[str, Any] = field(default_factory=dict)
    reasons: list[tuple[str, str]] = field(default_factory=list)
    run_date: str = ""
    tables: dict[str, NewTable] = field(default_factory=dict)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    has_lists: bool = True
    notes: dict[str, str] = field(default_factory=dict)
    inactive_filter: tuple[str, dict[str, Any]] | None = None

    def choose(self, choice: str, reason: str) -> None:
        """Records a choice and its reason."""
        self.reasons.append((choice, reason))


@dataclass(frozen=True)
class _Log:
    """The log, with the roles of its columns."""

    table: NewTable
    user: NamedColumn | None
    item: NamedColumn | None
    time: NamedColumn | None
    group: NamedColumn | None
    label: LabelGuess
    label_column: NamedColumn | None

    @property
    def keys(self) -> list[NamedColumn]:
        return [column for column in (self.user, self.item) if column is not None]

    @property
    def is_of_choices(self) -> bool:
        """Returns whether the log contains only rows that users chose."""
        return not self.label.has_shown

    @property
    def rows(self) -> int:
        return self.table.sample.rows.num_rows


def new_config(wishes: Wishes, questions: Questions) -> NewConfig:
    """Returns a configuration for a log.

    Raises:
        ConfigError: a file does not exist, or the log has no columns that can be the user and the item.
        DataError: a file cannot be read.
    """
    config = NewConfig()
    log = _log_of(wishes, questions, config)
    config.tables["log"] = log.table
    config.has_lists = len(log.keys) == 2
    if log.is_of_choices and not config.has_lists:
        raise _no_keys(log)
    _ask_for_unknown_user(log, questions)
    joined = _joined_tables(wishes, log, config)
    for section, table in config.tables.items():
        commas = [one.sampled for one in table.columns if one.sampled.has_comma]
        if commas:
            config.choose(
                f"{section}.decimal_separator: a comma",
                f"{commas[0].source} has numbers such as {commas[0].examples[0]}",
            )
    name = wishes.name or _name_of(wishes.log)
    config.choose(f"name: {name}", "the name of the log's file" if wishes.name is None else "--name")
    _add_tables(name, wishes, log, joined, config)
    _split(log, config)
    _features(log, joined, config)
    _model(log, config)
    _lists(wishes, log, joined, config)
    _use_data_folder(config)
    return config


def _no_keys(log: _Log) -> ConfigError:
    """Returns the error of a log without columns of users and items, which has only what users chose."""
    path, sources = log.table.sample.path.files[0], [column.sampled.source for column in log.table.columns]
    shown = shown_items_in([column.sampled for column in log.table.columns])
    if shown is not None:
        return ConfigError(
            f"the column {shown.source} of {path} has several shown items in one field, such as "
            f"{shown.examples[0][:60]!r}",
            "write one row for each shown item, with columns for the user, the item, the time and the click "
            "(0 or 1)",
        )
    return ConfigError(
        f"no column of {path} looks like the user or the item of a row: {sources}",
        "name them: --user COLUMN --item COLUMN (columns of files without a header are c1, c2, …)",
    )


def _ask_for_unknown_user(log: _Log, questions: Questions) -> None:
    """Records a question if one user has so many rows that its id may stand for unknown users."""
    user = None if log.user is None else log.user.sampled
    if user is not None and user.distinct > _FEW_USERS and share_of_most_frequent(user) > _MOST_OF_A_USER:
        questions.open.append(
            f"Is {user.examples[0]!r} a user? {share_of_most_frequent(user):.0%} of the rows have this "
            f"{user.source}; if it stands for unknown users, add it to log.null_values and set "
            "keys.rows_without_user: leave_out, or choose another column with --user"
        )


def _log_of(wishes: Wishes, questions: Questions, config: NewConfig) -> _Log:
    table = open_new_table(wishes.log)
    sample = table.sample
    roles = roles_of([one.sampled for one in table.columns], sample.rows.num_rows, has_names=sample.has_names)

    def chosen(wish: str | None, fitting: Sequence[SampledColumn], question: str) -> NamedColumn | None:
        if wish is not None:
            return table.column(wish)
        if not fitting:
            return None
        return table.column(questions.choose(question, [one.source for one in fitting]))

    user = chosen(wishes.user, roles.user, "Which column has the user?")
    items = [one for one in roles.item if user is None or one.source != user.sampled.source]
    item = chosen(wishes.item, items, "Which column has the item?")
    time = chosen(wishes.time, roles.time[:1], "Which column has the time?")
    label = roles.label
    if wishes.label is not None:
        label = _wished_label(table.column(wishes.label).sampled, questions)
    elif label.column is None and sample.has_names:
        taken = [None if one is None else one.sampled for one in (user, item, time)]
        label = _asked_events(possible_events([one.sampled for one in table.columns], taken), questions)
    how = "by its name" if sample.has_names else "by the order and the values of the columns"
    for role, column, wish in (
        ("user", user, wishes.user),
        ("item", item, wishes.item),
        ("time", time, wishes.time),
    ):
        if column is not None:
            config.choose(f"{role}: {column.sampled.source}", how if wish is None else f"--{role}")
    label_column = None if label.column is None else table.column(label.column.source)
    config.choose(f"clicks: {_clicks_of(label)}", label.why)
    if label.left_out and not label.has_shown:
        config.choose(
            f"left out: the events {list(label.left_out)}", "they do not say that the user chose the item"
        )
    group = None if roles.group is None else table.column(roles.group.source)
    renamed = _renamed(table, {"user": user, "item": item, "time": time, "label": label_column})
    by_source = {one.sampled.source: one for one in renamed.columns}

    def again(column: NamedColumn | None) -> NamedColumn | None:
        return None if column is None else by_source[column.sampled.source]

    return _Log(renamed, again(user), again(item), again(time), again(group), label, again(label_column))


def _wished_label(column: SampledColumn, questions: Questions) -> LabelGuess:
    """Returns the label in the column that `--label` names.

    Raises:
        ConfigError: the column does not contain numbers or only a few texts.
    """
    if column.type != "string":
        label = label_of([column], has_names=True)
        return label if label.column is not None else LabelGuess(column, has_shown=True, why="--label")
    label_of_events = events_of(column)
    if label_of_events is None:
        raise ConfigError(
            f"--label {column.source}: the column has {column.distinct:,} different texts, such as "
            f"{column.examples[0]!r}; a label is 0 or 1, a number, or one of a few events",
            "name the column that says what a user did, or omit --label if every row is a click",
        )
    if len(set(label_of_events.weights.values())) == 1 and len(label_of_events.weights) > 1:
        questions.open.append(
            f"Which events of {column.source} are clicks? {list(label_of_events.weights)} were all taken, "
            "with equal weights; correct log.label"
        )
    return label_of_events


def _asked_events(columns: Sequence[SampledColumn], questions: Questions) -> LabelGuess:
    """Returns the label of a log without a known column of events or labels."""
    every_row = "no column: every row is a click"
    if not columns:
        return LabelGuess(None)
    chosen = questions.choose(
        "Which column says what the user did (viewed, bought)?",
        [every_row, *(column.source for column in columns)],
    )
    if chosen == every_row:
        return LabelGuess(None)
    return _wished_label(next(column for column in columns if column.source == chosen), questions)


def _clicks_of(label: LabelGuess) -> str:
    """Returns a text for the list of choices: which rows of the log are clicks."""
    if label.column is None:
        return "every row"
    if label.weights:
        return f"the events {list(label.weights)} of {label.column.source}"
    if label.positive_at_least is not None:
        return f"{label.column.source} of at least {label.positive_at_least:g}"
    return f"{label.column.source} is 1"


def _renamed(table: NewTable, roles: dict[str, NamedColumn | None]) -> NewTable:
    """Names the columns of a file without names by their roles, and declares keys of text files as texts."""
    role_of = {column.sampled.source: role for role, column in roles.items() if column is not None}
    columns = []
    for column in table.columns:
        role = role_of.get(column.sampled.source)
        name = role if role and not table.sample.has_names else column.name
        if role == "label" and column.type == "string":
            name = "event" if name == "label" else name
        elif name == "label" and role != "label":
            name = "label_2"
        is_text_key = role in ("user", "item") and table.sample.is_text
        columns.append(replace(column, name=name, type="string" if is_text_key else column.type))
    reserved = {"row_id", "user_key", "item_key", "group_key", "split", "weight", "event_time", "history"}
    columns = [replace(one, name=f"{one.name}_2") if one.name in reserved else one for one in columns]
    return replace(table, columns=tuple(columns))


def _joined_tables(wishes: Wishes, log: _Log, config: NewConfig) -> _Joined:
    """Returns the tables of users and items, with the name of the column that contains the key of the log."""
    joined: _Joined = {}
    taken = [column.name for column in log.table.columns]
    for section, location, key in (("users", wishes.users, log.user), ("items", wishes.items, log.item)):
        if location is None:
            continue
        if key is None:
            raise ConfigError(
                f"the log has no column for the key of --{section}", f"name it: --{section[:-1]} COLUMN"
            )
        table = open_new_table(location, [*taken, "history"])
        key_column = key_of(table, key)
        column = replace(key_column, name=key.name, type=key.type)
        columns = tuple(column if one.name == key_column.name else one for one in table.columns)
        table = replace(table, columns=columns)
        is_items = section == "items"
        table = _with_titles(table, column, config) if is_items else _with_addresses(table, config)
        joined[section] = table, column
        config.tables[section] = table
        taken += [one.name for one in columns]
        config.choose(
            f"{section} joined by {key_column.sampled.source}",
            f"its values are those of {key.sampled.source}",
        )
    return joined


def _with_addresses(table: NewTable, config: NewConfig) -> NewTable:
    """Returns the table of users with its columns of e-mail addresses, which are declared but no features."""
    addresses = [one for one in table.columns if has_addresses(one.sampled)]
    names = [one.name for one in addresses]
    for one in addresses:
        config.choose(
            f"users.columns has {one.sampled.source}",
            f"it has e-mail addresses: user_columns: [{one.name}] of a CSV sink delivers them",
        )
    columns = [replace(one, type="string") if one.name in names else one for one in table.columns]
    return replace(table, columns=tuple(columns), addresses=tuple(names))


def _with_titles(table: NewTable, key: NamedColumn, config: NewConfig) -> NewTable:
    """Returns the table of items with the columns of its titles and pictures, which become texts."""
    others = [
        one.sampled
        for one in table.columns
        if one.name != key.name
        and (table.sample.is_text or one.sampled.type == "string" or one.sampled.separator is not None)
    ]
    named: dict[str, str] = {}
    title, why = title_of(others), "by its name"
    if title is None:
        title, why = title_by_values(others), "its texts are long and distinct"
    for what, column in (("title", title), ("image", image_of(others))):
        if column is not None:
            named[what] = table.column(column.source).name
            config.choose(f"items.{what}: {column.source}", why if what == "title" else "by its name")
    if title is None:
        config.choose("no titles: lists show ids", "no column looks like names of items; set items.title")
    columns = [replace(one, type="string") if one.name in named.values() else one for one in table.columns]
    return replace(table, columns=tuple(columns), titles=named)


def _name_of(location: str) -> str:
    """Returns the name of the file without its date, or of the nearest folder with a name that says more."""
    for part in reversed(PurePosixPath(without_days(location)).parts):
        plain = re.sub(r"[^a-z0-9]+", "_", part.split(".")[0].lower()).strip("_")
        if plain and plain not in _VAGUE_NAMES:
            return plain
    return "log"


def _add_tables(name: str, wishes: Wishes, log: _Log, joined: _Joined, config: NewConfig) -> None:
    sections = config.sections
    sections["name"] = name
    sections["data"] = ""  # reserves the position; `_use_data_folder` sets the value
    sections["lake"] = wishes.lake or os.path.abspath(f"lake/{name}")
    sections["log"] = {}  # reserves the position in the file; the keys are set below
    for section, (table, key) in joined.items():
        used = [
            one
            for one in table.columns
            if one.name in (*table.titles.values(), *table.addresses)
            or isinstance(feature_of(one, table.sample.rows.num_rows), NewFeature)
        ]
        sections[section] = {**table.section([key, *used]), **table.titles}
    if log.user is not None and log.item is not None:
        sections["keys"] = _keys(log.user, log.item, log, config)
    label: dict[str, Any] = {}
    if log.label_column is not None:
        label["column"] = log.label_column.name
        if log.label.positive_at_least is not None:
            label["positive_at_least"] = round(log.label.positive_at_least, 6)
        if log.label.weights:
            label["positive"] = list(log.label.weights)
            if log.is_of_choices:
                label["weights"] = dict(log.label.weights)
    used = [one for one in (*log.keys, log.time, log.group, log.label_column) if one is not None]
    log_section: dict[str, Any] = log.table.section([*used, *_context_columns(log)], _zone(wishes, log))
    if label:
        log_section["label"] = label
    if log.time is not None:
        unit = log.time.sampled.unit
        log_section["event_time"] = {"column": log.time.name, **({"unit": unit} if unit else {})}
    sections["log"] = log_section
    _limit_of_rejected(log, config)


def _limit_of_rejected(log: _Log, config: NewConfig) -> None:
    """Sets `quality.max_bad_share` if many rows of the sample have no item, time or label."""
    needed = [one for one in (log.item, log.time, log.label_column) if one is not None]
    missing = {one.sampled.source: one.sampled.nulls / max(log.rows, 1) for one in needed}
    source, share = max(missing.items(), key=lambda entry: entry[1], default=("", 0.0))
    total = min(sum(missing.values()), 1.0)
    if total <= _FEW_REJECTED:
        return
    limit = round(min(_ROOM * total, 1.0), 2)
    config.sections["quality"] = {"max_bad_share": limit}
    config.notes["quality"] = (
        f"{share:.1%} of the rows read have no {source}. Such rows are not used, but quarantined. By "
        "default, a run stops if they are more than 5%."
    )
    config.choose(f"quality.max_bad_share: {limit}", f"{share:.1%} of the rows have no {source}")


def _keys(user: NamedColumn, item: NamedColumn, log: _Log, config: NewConfig) -> dict[str, Any]:
    """Returns the section `keys`.

    It leaves out rows without a user if the log has more than a few of them.
    """
    section: dict[str, Any] = {"user": user.name, "item": item.name}
    if log.group is not None:
        section["group"] = log.group.name
    anonymous = user.sampled.nulls / max(log.rows, 1)
    if anonymous > _FEW_ANONYMOUS:
        section["rows_without_user"] = "leave_out"
        config.notes["keys"] = (
            f"{anonymous:.1%} of the rows read have no user. They are counted and left out: models and lists "
            "are for users. Without rows_without_user, a run stops if they are more than "
            "quality.max_bad_share."
        )
        config.choose(
            "keys.rows_without_user: leave_out",
            f"{anonymous:.1%} of the rows have no {user.sampled.source}",
        )
    return section


def _use_data_folder(config: NewConfig) -> None:
    """Writes local paths as `{data}/…`, with the absolute path of their common folder as `data`.

    So the configuration works from any folder. If the data are moved, only the key `data` changes.
    """
    tables = [config.sections[name] for name in ("log", "users", "items") if name in config.sections]
    tables += config.sections.get("candidates", {}).get("filters", [])
    tables += [config.inactive_filter[1]] if config.inactive_filter else []
    paths = {id(table): str(table["path"]) for table in tables if isinstance(table, dict)}
    if not all(file_io.is_local(path) for path in paths.values()):
        del config.sections["data"]
        return
    whole = {key: os.path.abspath(path) for key, path in paths.items()}
    fixed = [re.split(r"[*?\[]|\{date", path)[0] for path in whole.values()]
    common = os.path.commonpath([path.rsplit("/", 1)[0] or "/" for path in fixed])
    config.sections["data"] = common
    for table in tables:
        if isinstance(table, dict):
            table["path"] = "{data}" + whole[id(table)][len(common.rstrip("/")) :]


def _zone(wishes: Wishes, log: _Log) -> str | None:
    return wishes.time_zone if wishes.time_zone != "UTC" and log.time is not None else None


def _context_columns(log: _Log) -> list[NamedColumn]:
    """Returns the other columns of the log. They become features if the log also contains shown items."""
    roles = {one.name for one in (*log.keys, log.time, log.group, log.label_column) if one is not None}
    others = [one for one in log.table.columns if one.name not in roles]
    if log.is_of_choices:
        return []
    return [one for one in others if isinstance(feature_of(one, log.rows), NewFeature)]


def _split(log: _Log, config: NewConfig) -> None:
    """Adds the section `split`, and chooses the run date."""
    days = log.table.sample.path.days
    if len(days) >= _FEWEST_DAYS:
        train = min(len(days) - 2, _MOST_TRAIN_DAYS)
        config.sections["split"] = {
            "by": "day",
            "train_days": train,
            "validation_days": 1,
            "test_days": 1,
            "min_train_days": max(train // 2, 1),
        }
        config.run_date = days[-1]
        config.choose(f"split by day, {train} train days", f"the names of the files have {len(days)} days")
        return
    section = config.sections["log"]
    section["path"] = with_any_date(str(section["path"]))
    if log.time is not None:
        config.run_date = _last_day(log.time.sampled)
        config.sections["split"] = {"by": "fraction", "train": 0.8, "validation": 0.1}
        config.choose(
            "split by time: 80% train, 10% validation, 10% test", f"one table with times in {log.time.name}"
        )
        return
    config.run_date = datetime.now(UTC).date().isoformat()
    if log.user is not None and log.is_of_choices and _is_sorted_by(log.user.sampled):
        config.sections["split"] = {"by": "leave_last_out"}
        config.choose(
            "split: each user's last two choices are measured", "rows are sorted by user and have no time"
        )
        return
    config.sections["split"] = {"by": "fraction", "train": 0.8, "validation": 0.1}
    config.choose(
        "split by the order of rows: 80% train", "rows have no time, so their order is taken for it"
    )


def _last_day(time: SampledColumn) -> str:
    micros = micros_of(time)
    if not len(micros):
        return datetime.now(UTC).date().isoformat()
    last = datetime.fromtimestamp(int(micros[-1]) / 1e6, UTC).date()
    return min(last, datetime.now(UTC).date()).isoformat()


def _is_sorted_by(column: SampledColumn) -> bool:
    codes = column.values.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    runs = 1 + int(np.count_nonzero(codes[1:] != codes[:-1]))
    return runs <= _SORTED_RUNS * max(column.distinct, 1)


def _features(log: _Log, joined: _Joined, config: NewConfig) -> None:
    """Adds the sections `features` and `scopes`, and for a log of choices `history` and `negatives`."""
    scopes: dict[str, list[str]] = {"user": [], "item": [], "context": []}
    features = _features_of_tables(joined, scopes, config)
    for column in _context_columns(log):
        feature = feature_of(column, log.rows)
        if isinstance(feature, NewFeature):
            features.append(feature)
            scopes[_side_of(column, log, joined)].append(column.name)
    groups = _grouped(features)
    if log.user is not None and log.item is not None:
        groups += _key_features(log.user.name, log.item.name, scopes, of_choices=log.is_of_choices)
        config.sections["scopes"] = {side: names for side, names in scopes.items() if names}
    if log.is_of_choices:
        roles = {one.name for one in (*log.keys, log.time, log.label_column) if one is not None}
        config.left_out += [
            (
                "log",
                one.sampled.source,
                "an item that a user did not choose has no row with it in this log; "
                "attributes of items need a table (--items)",
            )
            for one in log.table.columns
            if one.name not in roles
        ]
        by_day = config.sections["split"]["by"] == "day"
        days = {"days": config.sections["split"]["train_days"]} if by_day else {}
        config.sections["history"] = {"length": _HISTORY_LENGTH, **days}
        config.sections["negatives"] = {"per_positive": 4, **({} if by_day else {"train": False})}
        config.choose(
            f"a history of {_HISTORY_LENGTH} items, 4 negatives for each click",
            "the log has only what users chose",
        )
    config.sections["features"] = groups


def _features_of_tables(joined: _Joined, scopes: dict[str, list[str]], config: NewConfig) -> list[NewFeature]:
    """Returns the features of the tables of users and items, and adds their names to the scopes."""
    features = []
    for section, (table, key) in joined.items():
        for column in table.columns:
            if column.name == key.name:
                continue
            feature = feature_of(column, table.sample.rows.num_rows)
            if column.name in table.addresses:
                feature = "it has e-mail addresses"
            shown = [what for what, name in table.titles.items() if name == column.name]
            if shown:
                feature = f"people read it: it is the {shown[0]} of the item"
            if isinstance(feature, str):
                config.left_out.append((section, column.sampled.source, feature))
                continue
            features.append(feature)
            scopes[section.removesuffix("s")].append(column.name)
    return features


def _key_features(user: str, item: str, scopes: dict[str, list[str]], *, of_choices: bool) -> list[Any]:
    """Returns the features of the keys: the item, and either the user's history or the user."""
    shared: dict[str, Any] = {"min_count": 1, "share": item}
    of_item = {"columns": [item], "kind": "categorical", "ops": [{"categorify": shared}]}
    scopes["item"].append(item)
    scopes["user"].append("history" if of_choices else user)
    if of_choices:
        of_history = {**shared, "counts": False}
        return [of_item, {"columns": ["history"], "kind": "multi_hot", "ops": [{"categorify": of_history}]}]
    of_user = {"columns": [user], "kind": "categorical", "ops": [{"categorify": {"min_count": 5}}]}
    return [of_item, of_user]


def _side_of(column: NamedColumn, log: _Log, joined: _Joined) -> str:
    """Returns whether an attribute of the log belongs to the user, the item, or the context of a row."""
    for side, section, key in (("item", "items", log.item), ("user", "users", log.user)):
        # If there is a table of users (or items), only its columns are attributes of users (or items).
        if key is not None and section not in joined and _depends_on(column.sampled, key.sampled):
            return side
    return "context"


def _depends_on(column: SampledColumn, key: SampledColumn) -> bool:
    if column.is_list or key.distinct > 0.5 * max(len(key.values), 1):
        return False
    table = pa.table({"key": key.values, "value": column.values})
    pairs = table.group_by(["key", "value"]).aggregate([("value", "count")])
    usual = pairs.group_by("key").aggregate([("value_count", "max"), ("value_count", "sum")])
    total = pc.sum(usual.column("value_count_sum")).as_py() or 0
    return bool(total) and pc.sum(usual.column("value_count_max")).as_py() >= _SAME_SHARE * total


def _grouped(features: Sequence[NewFeature]) -> list[dict[str, object]]:
    """Returns the entries of `features`. Columns with the same kind and operators share an entry."""

    def same(feature: NewFeature) -> str:
        return f"{feature.kind} {feature.ops}"

    return [
        {"columns": [one.column.name for one in group], "kind": group[0].kind, "ops": list(group[0].ops)}
        for group in (list(members) for _, members in groupby(sorted(features, key=same), key=same))
    ]


def _model(log: _Log, config: NewConfig) -> None:
    """Adds the sections `model` and `train`."""
    all_rows = log.table.sample.all_rows
    small = all_rows is not None and all_rows < _SMALL_ROWS
    if log.is_of_choices:
        # The training leaves the rows that `negatives` added out of its batches, so a batch needs more rows.
        drawn = config.sections["negatives"]
        rows_of_choice = 1 + (drawn["per_positive"] if drawn.get("train", True) else 0)
        config.sections["model"] = {
            "architecture": "sasrec", "embedding_dim": 64, "blocks": 1, "heads": 1, "dropout": 0.5,
            "multi_hot": {"lengths": {"history": _HISTORY_LENGTH}},
        }  # fmt: skip
        config.sections["train"] = {
            "global_batch_size": (512 if small else 1024) * rows_of_choice,
            "epochs": 2 if all_rows is None else min(16, max(2, _ROWS_OF_A_TRAINING // max(all_rows, 1))),
            "keep": "last",
            "shuffle": "users",
            "negatives": {"per_positive": 100},
            "loss": "softmax",
            "learning_rate": 0.001,
            "embedding_learning_rate": 0.001,
            "embeddings": {"optimizer": "lazy_adam"},
            "refit": True,
        }
        config.choose("model: sasrec", "it reads the order of a user's choices")
        return
    groups = config.sections["features"]
    dense = any(group["kind"] == "dense" for group in groups)
    config.sections["model"] = {
        "architecture": "dlrm",
        "embedding_dim": 16,
        **({"bottom_mlp": [64, 16]} if dense else {}),
        "top_mlp": [64, 32],
    }
    config.sections["train"] = {"global_batch_size": 512 if small else 2048, "epochs": 3 if small else 1}
    config.choose(
        "model: dlrm", "the log says which shown rows were clicked, so a model can learn the click rate"
    )


def _stock_filters(item: str, joined: _Joined, config: NewConfig) -> dict[str, Any]:
    """Returns the filter of items that are out of stock, or writes it as a comment if it is not certain."""
    if "items" not in joined:
        return {}
    table, key = joined["items"]
    stock = stock_of([one.sampled for one in table.columns if one.name != key.name])
    if stock is None:
        return {}
    column = table.column(stock.column.source)
    of_table = config.sections["items"]
    entry = {
        "filter": "out_of_stock",
        **{name: value for name, value in of_table.items() if name not in ("columns", "title", "image")},
        "item": key.name,
        "stock": column.name,
        **({"sold_out": list(stock.sold_out)} if stock.sold_out else {}),
        "columns": [
            key.declaration,
            (replace(column, type="string") if stock.sold_out else column).declaration,
        ],
    }
    source = column.sampled.source
    meaning = f"is one of {list(stock.sold_out)}" if stock.sold_out else "is 0, negative or false"
    if not table.sample.has_names:
        return {}
    if stock.is_certain:
        config.choose(
            f"candidates.filters: out_of_stock by {source}",
            f"an item is in no list if its {source} {meaning}",
        )
        return {"filters": [entry]}
    config.inactive_filter = (
        f"If {source} says which items are out of stock, remove the # of the next lines: an item is then in "
        f"no list if its {source} {meaning}.",
        entry,
    )
    config.choose(
        f"a comment: filter out_of_stock by {source}",
        f"{source} may say which items are out of stock; the configuration has the lines to activate",
    )
    return {}


def _lists(wishes: Wishes, log: _Log, joined: _Joined, config: NewConfig) -> None:
    """Adds the sections `candidates` and `score`."""
    if log.item is None or not config.has_lists:
        config.choose("no lists", "no columns look like a user and an item (--user, --item)")
        return
    filters = _stock_filters(log.item.name, joined, config)
    items = log.item.sampled.distinct
    if items <= _ALL_ITEMS:
        if filters:
            config.sections["candidates"] = filters
        config.choose("candidates: all items", f"the sample has only {items:,} items")
    else:
        config.sections["candidates"] = {
            "sources": [
                {"source": "covisitation", "n": 200},
                {"source": "als", "n": 200},
                {"source": "popular", "n": 100},
            ],
            **filters,
        }
        config.choose("candidates: bought or read together, ALS, popular", f"the sample has {items:,} items")
    score: dict[str, object] = {"k": wishes.k}
    scopes = config.sections["scopes"]
    context = {
        one.name: most_frequent(one.sampled)
        for one in log.table.columns
        if one.name in scopes.get("context", [])
    }
    if context:
        score["context"] = context
        config.choose(f"score.context: {context}", "the most frequent value of each context column")
    config.sections["score"] = score
