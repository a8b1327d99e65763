"""Chooses the sections of a new configuration from the first rows of its tables."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import PurePosixPath
from typing import Any

from conf.errors import ConfigError
from conf.names import with_any_date
from conf.raw_types import UTF8
from conf.types import LastValues
from etl.inference.column_types import depends_on, has_local_times, zone_of_days
from etl.inference.roles import (
    has_addresses,
    image_of,
    stock_of,
    title_by_values,
    title_of,
)
from etl.inference.table_files import without_days
from jobs.new_config.log_columns import (
    NewConfig,
    NewLog,
    Wishes,
    ask_for_unknown_user,
    ask_for_unread_time,
    clicks_in,
    is_unique,
    log_of,
    no_keys,
    outcome_in,
    share_without,
)
from jobs.new_config.questions import Questions
from jobs.new_config.tables import (
    RESERVED_NAMES,
    NamedColumn,
    NewFeature,
    NewTable,
    differs_by,
    feature_of,
    grouped,
    is_sorted_by,
    key_of,
    last_day,
    most_frequent,
    open_new_table,
    share_of_repeats,
)
from storage import file_io

# Minimum number of days of a log that is read by day: one train, one validation and one test day, and one
# earlier day. A log with fewer days is one table.
_FEWEST_DAYS, _MOST_TRAIN_DAYS = 4, 30
# A log that is read by day may lack one day, or this share of the days between its first and its last one.
_FEW_GAPS = 0.05
# With at most this number of items, a model without vectors scores all items for each user.
_ALL_ITEMS = 20_000
# With at most this number of items, the source `ease` takes seconds and at most a few hundred MB.
_EASE_ITEMS = 5_000
# A source proposes at least this number of items, and at least this multiple of the length of a list.
_LEAST_PROPOSED, _PROPOSED_PER_PLACE = 300, 10
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
# A log of choices contains only rows with items that users chose. For such a log, `init` writes the settings
# of benchmarks/lists.yaml, which were measured on several logs (docs/decisions/sequence-models.md#0129).
# `_ROWS_OF_A_TRAINING` is the approximate number of rows that a training run reads in all epochs together. A
# training run has two to sixteen epochs, and takes some minutes.
_ROWS_OF_A_TRAINING = 3_200_000
_HISTORY_LENGTH = 20
# If more than this share of the rows have no user, the configuration leaves such rows out without an error.
_FEW_ANONYMOUS = 0.005
# If more than `_FEW_REJECTED` of the rows have no item, time or label, `quality.max_bad_share` becomes
# `_ROOM` times the share of these rows.
_FEW_REJECTED, _ROOM = 0.02, 1.5
# If users choose the same items again in at least this share of the rows after their first day, `init` asks
# whether lists may contain such items. The share for a log with events is larger, because many users view an
# item again before they buy it.
_REPEATS, _REPEATED_EVENTS = 0.1, 0.3


# Maps the section of a table of attributes (`users` or `items`) to the table and its key column.
_Joined = dict[str, tuple[NewTable, NamedColumn]]


def new_config(wishes: Wishes, questions: Questions) -> NewConfig:
    """Returns a configuration for a log.

    Raises:
        ConfigError: a file does not exist, or the log has no columns that can be the user and the item.
        DataError: a file cannot be read.
    """
    config = NewConfig()
    log = log_of(wishes, questions, config)
    config.tables["log"] = log.table
    config.has_lists = len(log.keys) == 2
    if log.is_of_choices and not config.has_lists:
        raise no_keys(log)
    if len(log.keys) == 1:
        error = no_keys(log)
        questions.open.append(f"{error.problem}. Without it, there are no lists: {error.remedy}")
    ask_for_unknown_user(log, questions)
    ask_for_unread_time(log, questions)
    joined = _joined_tables(wishes, log, config)
    log = _without_outcomes(log, joined, questions, config)
    for section, table in config.tables.items():
        if table.sample.encoding != UTF8:
            config.choose(
                f"{section}.encoding: {table.sample.encoding}", "the file has bytes that are not UTF-8"
            )
        commas = [one.sampled for one in table.columns if one.sampled.has_comma]
        if commas:
            config.choose(
                f"{section}.decimal_separator: a comma",
                f"{commas[0].source} has numbers such as {commas[0].examples[0]}",
            )
    name = wishes.name or _name_of(wishes.log, PurePosixPath(log.table.sample.path.pattern).name)
    config.choose(f"name: {name}", "the name of the log's file" if wishes.name is None else "--name")
    _add_tables(name, _zone(wishes, log, questions, config), wishes, log, joined, config)
    _split(log, config)
    _features(log, joined, config)
    _model(log, config)
    _lists(wishes, log, joined, config, _repeats(log, questions))
    _use_data_folder(config)
    return config


def _joined_tables(wishes: Wishes, log: NewLog, config: NewConfig) -> _Joined:
    """Returns the tables of users and items, each with the column that contains the log's ids."""
    joined: _Joined = {}
    taken = [column.name for column in log.table.columns]
    for section, location, key in (("users", wishes.users, log.user), ("items", wishes.items, log.item)):
        if location is None:
            continue
        if key is None:
            raise ConfigError(
                f"no column of the log looks like the ids of the table of {section} (--{section})",
                f"pass the column of the log as --{section[:-1]} COLUMN",
            )
        table = open_new_table(location, [*taken, *RESERVED_NAMES])
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
    """Returns the table of users, with e-mail addresses declared as strings that do not become features."""
    addresses = [one for one in table.columns if has_addresses(one.sampled)]
    names = [one.name for one in addresses]
    for one in addresses:
        config.choose(
            f"users.columns has {one.sampled.source}",
            f"it has e-mail addresses, which a CSV sink with user_columns: [{one.name}] delivers",
        )
    columns = [replace(one, type="string") if one.name in names else one for one in table.columns]
    return replace(table, columns=tuple(columns), addresses=tuple(names))


def _with_titles(table: NewTable, key: NamedColumn, config: NewConfig) -> NewTable:
    """Returns the table of items. The columns with its titles and pictures get the type string."""
    others = [
        one.sampled
        for one in table.columns
        if one.name != key.name
        and (table.sample.is_text or one.sampled.type == "string" or one.sampled.separator is not None)
    ]
    named: dict[str, str] = {}
    title, why = title_of(others), "by its name"
    if title is None:
        title, why = title_by_values(others), "its values are long and distinct"
    for what, column in (("title", title), ("image", image_of(others))):
        if column is not None:
            named[what] = table.column(column.source).name
            config.choose(f"items.{what}: {column.source}", why if what == "title" else "by its name")
    if title is None:
        config.choose("no titles: lists show ids", "no column looks like names of items; set items.title")
    columns = [replace(one, type="string") if one.name in named.values() else one for one in table.columns]
    return replace(table, columns=tuple(columns), titles=named)


def _name_of(location: str, pattern: str) -> str:
    """Returns a name for the configuration: that of the log's file or, if too general, of its folder.

    Args:
        location: the file, folder or glob that the user passed.
        pattern: the name of the files, with `{date}` in place of the date.
    """
    *folders, last = PurePosixPath(without_days(location)).parts or ("",)
    for part in (last, re.sub(r"\{.*?\}|\*", "", pattern), *reversed(folders)):
        plain = re.sub(r"[^a-z0-9]+", "_", part.split(".")[0].lower()).strip("_")
        if plain and plain not in _VAGUE_NAMES:
            return plain
    return "log"


def _add_tables(
    name: str, zone: str, wishes: Wishes, log: NewLog, joined: _Joined, config: NewConfig
) -> None:
    """Adds the sections of the tables, and of the keys. `zone` is the time zone of the log."""
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
    used = [one for one in (*log.keys, *log.times, log.group, log.label_column) if one is not None]
    attributes = _attributes_of_log(log, joined)
    earlier = [one.column for one in _features_of_earlier_events(log, joined)]
    others = [*attributes, *(one for one in earlier if one not in attributes)]
    log_section: dict[str, Any] = log.table.section(
        [*used, *others], zone if zone != "UTC" and log.time is not None else None
    )
    if log.label_column is not None:
        log_section["label"] = _label(log.label_column, log)
    if log.time is not None:
        unit = log.time.sampled.unit
        of_day = {} if log.time_of_day is None else {"time_of_day": log.time_of_day.name}
        if has_local_times(log.time.sampled):
            why = "the times have no offset; --time-zone sets their time zone"
            config.choose(f"log.time_zone: {wishes.time_zone}", why)
        log_section["event_time"] = {"column": log.time.name, **of_day, **({"unit": unit} if unit else {})}
    sections["log"] = log_section
    _limit_of_rejected(log, config)


def _label(column: NamedColumn, log: NewLog) -> dict[str, Any]:
    """Returns the section `log.label`.

    With `weights`, rows of events that are not listed are left out.
    """
    guess = log.label
    section: dict[str, Any] = {"column": column.name}
    if guess.has_empty:
        section["rows_without_value"] = "not_clicked"
    if guess.positive_at_least is not None:
        return {**section, "positive_at_least": round(guess.positive_at_least, 6)}
    if guess.has_empty:
        events = {"positive": list(guess.weights)} if guess.weights else {}
        return {**section, **events}
    if not guess.weights:
        return section
    events = {**section, "positive": list(guess.weights)}
    if log.is_of_choices:
        return {**events, "weights": dict(guess.weights)}
    kept = (*guess.shown, *guess.weights)
    return {**events, "weights": dict.fromkeys(kept, 1.0)} if guess.left_out else events


def _limit_of_rejected(log: NewLog, config: NewConfig) -> None:
    """Sets `quality.max_bad_share` if many rows of the sample have no item, time or label."""
    label = None if log.label.has_empty else log.label_column
    needed = [one for one in (log.item, *log.times, label) if one is not None]
    missing = {one.sampled.source: share_without(one.sampled, log.label) for one in needed}
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


def _keys(user: NamedColumn, item: NamedColumn, log: NewLog, config: NewConfig) -> dict[str, Any]:
    """Returns the section `keys`.

    It leaves out rows without a user if the log has more than a few such rows.
    """
    section: dict[str, Any] = {"user": user.name, "item": item.name}
    if log.group is not None:
        section["group"] = log.group.name
    anonymous = user.sampled.nulls / max(log.rows, 1)
    # If no value occurs twice, the column is probably not the user: leaving out rows would hide this mistake.
    if anonymous > _FEW_ANONYMOUS and not is_unique(user.sampled):
        section["rows_without_user"] = "leave_out"
        config.notes["keys"] = (
            f"{anonymous:.1%} of the rows read have no user. They are counted and left out, because models "
            "and lists need users. Without rows_without_user, a run stops if their share is above "
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


def _zone(wishes: Wishes, log: NewLog, questions: Questions, config: NewConfig) -> str:
    """Returns the time zone of the log. Asks if many rows are on other days than their files in UTC."""
    if wishes.time_zone != "UTC" or log.time is None or log.time_of_day is not None or not _is_by_day(log):
        return wishes.time_zone
    days = zone_of_days(log.time.sampled, log.table.sample)
    if days is None:
        return wishes.time_zone
    outside = f"{days.outside:.0%} of the rows are not on the UTC day of their file"
    if days.stored is not None:
        config.choose(f"log.time_zone: {days.stored}", f"the zone of {log.time.sampled.source}; {outside}")
        return days.stored
    zone = questions.choose(
        f"In which time zone do the days of the files begin? {outside}.",
        [*days.zones, "UTC"],
    )
    config.choose(f"log.time_zone: {zone}", outside)
    return zone


def _attributes_of_log(log: NewLog, joined: _Joined) -> list[NamedColumn]:
    """Returns the columns of the log that have no role, such as user or time, and become features.

    In a log of choices, these are the attributes of users. An item that a user did not choose has no row, so
    such a log has no attributes for it.
    """
    others = [
        one
        for one in _other_columns(log)
        if one.name not in log.outcomes and isinstance(feature_of(one, log.rows), NewFeature)
    ]
    if not log.is_of_choices:
        return others
    return [one for one in others if _side_of(one, log, joined) == "user"]


def _without_outcomes(log: NewLog, joined: _Joined, questions: Questions, config: NewConfig) -> NewLog:
    """Returns the log with `outcomes`: columns that seem to be known only after a click. Asks about them."""
    if log.is_of_choices:
        return log
    earlier = [one.column.name for one in _features_of_earlier_events(log, joined)]
    outcomes: dict[str, str] = {}
    for column in _attributes_of_log(log, joined):
        if column.name not in earlier and _side_of(column, log, joined) == "context":
            why = outcome_in(column.sampled, log.label)
            if why is not None:
                outcomes[column.name] = why
                config.left_out.append(("log", column.sampled.source, why))
    if outcomes:
        questions.open.append(
            f"Are the values of {', '.join(outcomes)} known before the click? They seem to follow from it, "
            "so they are not features. If they are known before, add them to log.columns, features and scopes"
        )
    return replace(log, outcomes=outcomes)


def _other_columns(log: NewLog) -> list[NamedColumn]:
    """Returns the columns of the log that are not used as user, item, time, group or label."""
    roles = {one.name for one in (*log.keys, *log.times, log.group, log.label_column) if one is not None}
    return [one for one in log.table.columns if one.name not in roles]


def _features_of_earlier_events(log: NewLog, joined: _Joined) -> list[NewFeature]:
    """Returns features of numbers that describe the item but change from event to event, such as prices.

    The number of a future event is not known, so these features are computed from the item's last value on
    earlier days (section `last_values`). This needs a log that is read by day. In a log of choices, numbers
    that do not vary are returned too, because items that a user did not choose have no row.
    """
    if log.user is None or log.item is None or not _is_by_day(log):
        return []
    features = []
    for column in _other_columns(log):
        feature = feature_of(column, log.rows)
        if not column.sampled.is_number or isinstance(feature, str):
            continue
        is_free = log.is_of_choices or _side_of(column, log, joined) == "context"
        if is_free and feature.kind == "dense" and differs_by(column.sampled, log.item.sampled):
            features.append(feature)
    return features


def _is_by_day(log: NewLog) -> bool:
    """Returns whether the names of the files contain enough days for a log that is read by day.

    A run by day needs the files of the run date and of the day before, so nearly all days must have files.
    Files of months, or only of weekdays, are read as one table.
    """
    days = log.table.sample.path.days
    return len(days) >= _FEWEST_DAYS and _span(days) - len(days) <= max(1, _FEW_GAPS * _span(days))


def _span(days: Sequence[str]) -> int:
    """Returns the number of days from the first to the last of some sorted days, including both."""
    return (date.fromisoformat(days[-1]) - date.fromisoformat(days[0])).days + 1


def _last_run_date(days: Sequence[str]) -> str:
    """Returns the last day with files that follows another day with files, because a run needs both."""
    return next(
        (last for before, last in zip(days[-2::-1], days[:0:-1], strict=True) if _span([before, last]) == 2),
        days[-1],
    )


def _split(log: NewLog, config: NewConfig) -> None:
    """Adds the section `split`, and chooses the run date."""
    days = log.table.sample.path.days
    if _is_by_day(log):
        train = min(len(days) - 2, _MOST_TRAIN_DAYS)
        config.sections["split"] = {
            "by": "day",
            "train_days": train,
            "validation_days": 1,
            "test_days": 1,
            "min_train_days": max(train // 2, 1),
        }
        config.run_date = _last_run_date(days)
        config.choose(f"split by day, {train} train days", f"the names of the files have {len(days)} days")
        return
    section = config.sections["log"]
    section["path"] = with_any_date(str(section["path"]))
    if len(days) >= _FEWEST_DAYS:
        config.choose(
            "one table instead of a log by day",
            f"the names of the files have {len(days)} of the {_span(days)} days from {days[0]} to "
            f"{days[-1]}, but a run by day needs files of its last two days",
        )
    if log.time is not None:
        config.run_date = last_day(log.time.sampled)
        if log.table.sample.lacks_end:
            config.choose(
                f"run date: {config.run_date}",
                "the last day of the rows read; only the start of such a file is read, so check it",
            )
        config.sections["split"] = {"by": "fraction", "train": 0.8, "validation": 0.1}
        config.choose(
            "split by time: 80% train, 10% validation, 10% test",
            f"one table with times in {' and '.join(one.name for one in log.times)}",
        )
        return
    config.run_date = datetime.now(UTC).date().isoformat()
    if log.user is not None and log.is_of_choices and is_sorted_by(log.user.sampled):
        config.sections["split"] = {"by": "leave_last_out"}
        config.choose(
            "split: each user's last two choices are measured", "rows are sorted by user and have no time"
        )
        return
    config.sections["split"] = {"by": "fraction", "train": 0.8, "validation": 0.1}
    config.choose(
        "split by the order of rows: 80% train", "rows have no time, so their order is taken for it"
    )


def _features(log: NewLog, joined: _Joined, config: NewConfig) -> None:
    """Adds `features` and `scopes`. If all rows are choices of users, also adds `history` and `negatives`."""
    scopes: dict[str, list[str]] = {"user": [], "item": [], "context": []}
    features = _features_of_tables(joined, scopes, config)
    earlier = _features_of_earlier_events(log, joined)
    columns_of_earlier = [one.column for one in earlier]
    if earlier:
        names = [one.name for one in columns_of_earlier]
        last_values = LastValues(columns=names)
        config.sections["last_values"] = {"columns": names}
        for one, name in zip(earlier, last_values.new_columns, strict=True):
            features.append(replace(one, column=replace(one.column, name=name)))
            scopes["item"].append(name)
        config.choose(
            f"last_values: {', '.join(names)}",
            "these numbers depend mostly on the item, and are not known for a future event",
        )
    attributes = [one for one in _attributes_of_log(log, joined) if one not in columns_of_earlier]
    for column in attributes:
        feature = feature_of(column, log.rows)
        if log.table.sample.has_displays and column.sampled.is_list and log.item is not None:
            shared = {"min_count": 1, "share": log.item.name, "counts": False}
            feature = NewFeature(column, "multi_hot", ({"categorify": shared},))
        if isinstance(feature, NewFeature):
            features.append(feature)
            scopes[_side_of(column, log, joined)].append(column.name)
    _choose_attributes(attributes, scopes, config)
    groups = grouped(features)
    if log.user is not None and log.item is not None:
        groups += _key_features(log.user.name, log.item.name, scopes, of_choices=log.is_of_choices)
        config.sections["scopes"] = {side: names for side, names in scopes.items() if names}
    if log.is_of_choices:
        config.left_out += [
            ("log", one.sampled.source, _why_left_out(one, log, joined))
            for one in _other_columns(log)
            if one not in (*attributes, *columns_of_earlier)
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


def _choose_attributes(
    attributes: Sequence[NamedColumn], scopes: dict[str, list[str]], config: NewConfig
) -> None:
    """Records which columns of the log are attributes of users and of items."""
    for side in ("user", "item"):
        names = [one.sampled.source for one in attributes if one.name in scopes[side]]
        if names:
            config.choose(
                f"attributes of the {side}: {', '.join(names)}",
                f"nearly all rows of a {side} have the same value",
            )


def _why_left_out(column: NamedColumn, log: NewLog, joined: _Joined) -> str:
    """Returns the reason why a column does not become a feature if all rows are choices of users."""
    is_feature = isinstance(feature_of(column, log.rows), NewFeature)
    if is_feature and "users" in joined and log.user and depends_on(column.sampled, log.user.sampled):
        return "attributes of users come from the table of users (--users): add it there"
    return (
        "this log has rows only of items that users chose, so it cannot give the attributes of all items; "
        "they need a table (--items)"
    )


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
                feature = f"it is the {shown[0]} of the item, which is only shown to people"
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


def _side_of(column: NamedColumn, log: NewLog, joined: _Joined) -> str:
    """Returns whether an attribute of the log belongs to the user, the item, or the context of a row."""
    for side, section, key in (("item", "items", log.item), ("user", "users", log.user)):
        # If there is a table of users (or items), only its columns are attributes of users (or items).
        if key is not None and section not in joined and depends_on(column.sampled, key.sampled):
            return side
    return "context"


def _model(log: NewLog, config: NewConfig) -> None:
    """Adds the sections `model` and `train`."""
    all_rows = log.table.sample.all_rows
    small = all_rows is not None and all_rows < _SMALL_ROWS
    if log.is_of_choices:
        # The batch size also counts the rows that the section `negatives` adds, but this model is not trained
        # on them. So set a larger batch size.
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
    """Returns the filter for items that are out of stock, or writes it as a comment if it may be wrong."""
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
        f"{source} may say which items are out of stock; to use this column, activate its lines in the "
        "configuration",
    )
    return {}


def _repeats(log: NewLog, questions: Questions) -> dict[str, Any]:
    """Returns the settings with which lists may contain items that the user has chosen before; often none.

    Asks only if all rows are choices of users: an item that is only shown again was not chosen again.
    """
    if not log.is_of_choices or log.user is None or log.item is None or log.time is None:
        return {}
    label = log.label
    clicks = None if label.column is None else clicks_in(label.column, label)
    share = share_of_repeats(log.user.sampled, log.item.sampled, log.time.sampled, clicks)
    if share < (_REPEATED_EVENTS if label.weights else _REPEATS):
        return {}
    never, again = "no: only items that are new to the user", "yes: candidates.repeats: all"
    answers: dict[str, dict[str, Any]] = {never: {}, again: {"repeats": "all"}}
    most = max(label.weights.values(), default=0.0)
    if most > min(label.weights.values(), default=0.0):
        events = [event for event, weight in label.weights.items() if weight == most]
        words = f"yes, unless the user had one of the events {events} with it: candidates.exclude_events"
        answers[words] = {"exclude_events": events}
    chose = f"had one of the events {[*label.weights]} with" if label.weights else "chose"
    question = (
        f"In {share:.0%} of the {'clicks' if label.weights else 'rows'} after a user's first day, the user "
        f"{chose} the item on an earlier day, too. May lists contain such items?"
    )
    return answers[questions.choose(question, [*answers])]


def blended_sources(items: int, k: int) -> list[dict[str, Any]]:
    """Returns the candidate sources for a log of choices. A blend combines their scores with the logit."""
    n = max(_LEAST_PROPOSED, _PROPOSED_PER_PLACE * k)
    names = ["retrieval", "item_knn", *(["ease"] if items <= _EASE_ITEMS else []), "popular"]
    return [{"source": name, "n": n} for name in names]


def _lists(wishes: Wishes, log: NewLog, joined: _Joined, config: NewConfig, repeats: dict[str, Any]) -> None:
    """Adds the sections `candidates` and `score`."""
    if log.item is None or not config.has_lists:
        config.choose("no lists", "no columns look like a user and an item (--user, --item)")
        return
    filters = _stock_filters(log.item.name, joined, config)
    if log.label.has_shown and log.label.positive_at_least is not None:
        # `repeats: auto` would treat ratings (`positive_at_least`) like a log that has only chosen items.
        filters = {"repeats": "unclicked", **filters}
    if repeats:
        filters = {**repeats, **filters}
        [(key, value)] = repeats.items()
        config.choose(f"candidates.{key}: {value}", "users choose the same items again")
    items = log.item.sampled.distinct
    score: dict[str, object] = {"k": wishes.k}
    if log.is_of_choices:
        config.sections["candidates"] = {"sources": blended_sources(items, wishes.k), **filters}
        score["blend"] = "auto"
        names = ", ".join(source["source"] for source in config.sections["candidates"]["sources"])
        config.choose(f"candidates: {names}", "the model's best items, and those of simpler methods")
        config.choose("score.blend: auto", "validation clicks decide how these methods are combined")
    elif items <= _ALL_ITEMS:
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
    scopes = config.sections["scopes"]
    values = {
        one.name: most_frequent(one.sampled)
        for one in log.table.columns
        if one.name in scopes.get("context", [])
    }
    context = {name: value for name, value in values.items() if value is not None}
    if context:
        score["context"] = context
        config.choose(f"score.context: {context}", "the most frequent value of each context column")
    times = [name for name in values if name not in context]
    if times:
        config.choose(
            f"no score.context: {', '.join(times)}", "lists use the most frequent time of the train rows"
        )
    config.sections["score"] = score
