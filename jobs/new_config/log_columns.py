"""Finds the columns with the user, the item, the time and the clicks in a log without a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError
from etl.inference.column_types import SampledColumn, has_midnights, numbers_of, plain_name
from etl.inference.roles import (
    CERTAIN_EVENT_NAME,
    LABEL_NAME,
    MOST_NULL_KEYS,
    NO_LABEL_NAME,
    NO_TEXTS,
    LabelGuess,
    Roles,
    doubt_of_name,
    events_of,
    is_attribute,
    is_id_name,
    label_of,
    labels_of_numbers,
    possible_events,
    possible_keys,
    roles_of,
    roles_of_displays,
    time_of_day_of,
)
from etl.inference.sample import TableSample
from etl.raw.text_values import numbers
from jobs.new_config.questions import Questions
from jobs.new_config.tables import (
    NamedColumn,
    NewTable,
    key_by_table,
    open_new_table,
    renamed,
    share_of_most_frequent,
    shown_items_in,
    with_arrays,
    with_lists,
)

# If there are more than `_FEW_USERS` users, and one of them has more than this share of the rows, its id
# probably stands for unknown users.
_FEW_USERS, _MOST_OF_A_USER = 20, 0.25
# Names of columns with the time of a row, and names of columns with other times.
_TIME_NAME = re.compile(
    r"(^|_)(timestamp|datetime|date|created|ts)($|_)|^(event_)?time$|_at$|^(when|datum|zeit|fecha|heure)$"
)
_OTHER_TIME_NAME = re.compile(r"birth|signup|sign_up|regist|release|publish|expir|updated|deliver")
# The first pattern matches names of columns that say what a user did with a shown item. The second matches
# words in such a name that show that the value is known before the click: the past, a sum, or a kind.
_OUTCOME_NAME = re.compile(
    r"(^|_)(click(ed)?|(dis)?like[sd]?|hate[sd]?|follow(ed)?|comment(s|ed)?|forward(ed)?|play(s|ed|ing|back)?|"
    r"view(ed|ing)?|watch(es|ed|ing)?|listen(ed|ing)?|stay(ed)?|dwell|read(ing)?|finish(ed)?|progress|"
    r"complet(e|ed|ion)|collect(ed)?|favou?rited?|saved?|bookmark(ed)?|add_?to_?cart|carted|ordered|bought|buy|"
    r"purchase[sd]?|conver(t|ted|sion)|engage(d|ment)|skip(ped)?|download(ed)?|subscribed?|install(ed)?|"
    r"enter(ed)?)($|_)|^((is|has|did)_)?shared?($|_)"
)
_KNOWN_BEFORE = re.compile(
    r"(^|_)(past|prev|previous|last|hist|history|before|prior|avg|average|mean|median|counts?|cnt|num|total|sum|"
    r"rate|ctr|days?|[0-9]+[dhwm]|position|pos|rank|type|id|source)($|_)"
)
# A column seems to be known only after the click if other values than its usual one are rare in rows without
# a click, but not in clicks. Their share must be at most `_VARIED_SHOWN` in rows without a click. In clicks,
# it must be at least `_VARIED_CLICKS`, and at least `_MORE_OFTEN` times as large. A column is not judged by
# fewer than `_FEWEST_OF_A_KIND` clicks, or fewer rows without a click.
_VARIED_SHOWN, _VARIED_CLICKS, _MORE_OFTEN, _FEWEST_OF_A_KIND = 0.01, 0.05, 10, 20
# An answer to the question: which column has the events?
_EVERY_ROW = "no column: every row is a click"
# Answers to the question: what do other events mean in a log with shown items?
_LEFT_OUT, _NOT_CLICKED, _CLICKED = (
    "nothing: such rows are left out",
    "the item was shown, but not clicked",
    "the item was clicked",
)
_BY_NAME = "by its name"
_BY_ID_NAME = "its name says that it has ids"
# A column with numbers in only some rows may have counts of clicks if it has at most _FEW_COUNTS different
# numbers. _NO_COUNT_NAME matches names of numbers, such as click rates, that are attributes of a row.
_FEW_COUNTS = 30
_NO_COUNT_NAME = re.compile(
    r"(^|_)(rate|ctr|ratio|prob|probability|avg|mean|share|score|pos|position|rank|past|prev|last|hist|history)($|_)"
)
# An event has no items if at most this share of its rows have an item.
_ROWS_WITH_ITEM = 0.01
# A user column is doubtful if more than this share of its values are distinct.
_UNIQUE_SHARE = 0.95


@dataclass(frozen=True)
class Wishes:
    """The arguments of `init`.

    Attributes:
        log, users, items: paths of the tables; None for tables that do not exist.
        user, item, time, label: columns of the log by their names in the files; None if they are inferred.
        name: name of the configuration; None for the name of the file.
        lake: folder of the lake; None for a folder next to the configuration.
        time_zone: time zone of times without an offset, such as UTC.
        k: number of items in a list (`score.k`).
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
        tables: maps the names of its sections, such as `users`, to their tables.
        left_out: for each column without a feature, its table, name and the reason.
        has_lists: whether the log has a user and an item, so that lists can be made.
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
        """Records a choice for the new configuration and its reason, which `init` prints."""
        self.reasons.append((choice, reason))


@dataclass(frozen=True)
class NewLog:
    """The log, with the roles of its columns.

    Attributes:
        table: the log.
        user, item, time, time_of_day, group, label_column: its columns; None for roles that no column has.
        label: the column, and its values, that make a row a click.
        outcomes: for each column that seems to be known only after the click, the reason in a few words.
    """

    table: NewTable
    user: NamedColumn | None
    item: NamedColumn | None
    time: NamedColumn | None
    time_of_day: NamedColumn | None
    group: NamedColumn | None
    label: LabelGuess
    label_column: NamedColumn | None
    outcomes: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[NamedColumn]:
        """Returns the column of the user and the column of the item, if they exist."""
        return [column for column in (self.user, self.item) if column is not None]

    @property
    def times(self) -> list[NamedColumn]:
        """Returns the column of the time and the column of the time of day, if they exist."""
        return [column for column in (self.time, self.time_of_day) if column is not None]

    @property
    def is_of_choices(self) -> bool:
        """Returns whether the log contains only rows of items that users chose."""
        return not self.label.has_shown

    @property
    def rows(self) -> int:
        """Returns the number of rows of the sample."""
        return self.table.sample.rows.num_rows


def no_keys(log: NewLog) -> ConfigError:
    """Returns the error for a log in which the column of the user, of the item, or both are not known."""
    path, sources = log.table.sample.path.files[0], [column.sampled.source for column in log.table.columns]
    shown = shown_items_in([column.sampled for column in log.table.columns])
    if shown is not None:
        return ConfigError(
            f"the column {shown.source} of {path} has several shown items in one field, such as "
            f"{shown.examples[0][:60]!r}",
            "write one row for each shown item, with columns for the user, the item, the time and the click "
            "(0 or 1)",
        )
    if log.user is None and log.item is None:
        error = ConfigError(
            f"no column of {path} looks like the user or the item of a row: {sources}",
            "name them: --user COLUMN --item COLUMN (columns of files without a header are c1, c2, …)",
        )
        return with_arrays(error, log.table.sample)
    known, missing = ("user", "item") if log.item is None else ("item", "user")
    column = log.keys[0].sampled.source
    error = ConfigError(
        f"no column of {path} looks like the {missing} of a row: {sources}; {column} is the {known}",
        f"name it: --{missing} COLUMN, or pass the table of {missing}s with --{missing}s",
    )
    return with_arrays(error, log.table.sample)


def ask_for_unknown_user(log: NewLog, questions: Questions) -> None:
    """Records a question if one user has so many rows that its id may stand for unknown users."""
    user = None if log.user is None else log.user.sampled
    if user is not None and user.distinct > _FEW_USERS and share_of_most_frequent(user) > _MOST_OF_A_USER:
        questions.open.append(
            f"Is {user.examples[0]!r} a user? {share_of_most_frequent(user):.0%} of the rows have this "
            f"{user.source}; if it stands for unknown users, add it to log.null_values and set "
            "keys.rows_without_user: leave_out, or choose another column with --user"
        )


def outcome_in(column: SampledColumn, label: LabelGuess) -> str | None:
    """Returns in a few words why a column seems to be known only after the click; None if it does not.

    The values of such a column, such as the time that a user watched a video, are not known when lists are
    made. A model that reads them learns nothing else.

    Args:
        column: a column of a log with shown items that varies from row to row.
        label: the column, and its values, that make a row a click.
    """
    name = plain_name(column.source)
    has_amounts = column.is_number or column.is_time or column.type == "bool"
    if has_amounts and _OUTCOME_NAME.search(name) and not _KNOWN_BEFORE.search(name):
        return "its name says what users do with an item after they see it"
    if label.column is None or column.is_list:
        return None
    is_click = clicks_in(label.column, label)
    values = column.values.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    is_left_out = np.asarray(_has_events(label.column, label.left_out)) if label.left_out else False
    shown, clicks = values[~(is_click | is_left_out)], values[is_click]
    if min(len(shown), len(clicks)) < _FEWEST_OF_A_KIND:
        return None
    usual = np.bincount(shown).argmax()
    of_shown, of_clicks = (shown != usual).mean(), (clicks != usual).mean()
    if of_shown > _VARIED_SHOWN or of_clicks < max(_VARIED_CLICKS, _MORE_OFTEN * of_shown):
        return None
    return (
        f"{of_clicks:.0%} of the clicks, but only {of_shown:.1%} of the other rows, have unusual values of it"
    )


def clicks_in(column: SampledColumn, label: LabelGuess) -> np.ndarray:
    """Returns, for each of n rows, whether it is a click."""
    if label.positive_at_least is not None:
        values = column.values.combine_chunks()
        counts = numbers(values) if pa.types.is_string(values.type) else values
        return (
            np.asarray(pc.cast(counts, pa.float64(), safe=False).fill_null(-np.inf))
            >= label.positive_at_least
        )
    texts = pc.cast(column.values.combine_chunks(), pa.string())
    clicks = [*label.weights] if label.weights else ["1", "1.0", "true", "t", "yes", "y"]
    is_click = pc.is_in(texts if label.weights else pc.utf8_lower(texts), pa.array(clicks))
    return np.asarray(is_click.to_numpy(zero_copy_only=False), dtype=bool)


def ask_for_unread_time(log: NewLog, questions: Questions) -> None:
    """Records a question if the log seems to have no time, but a column is named like one."""
    others = [one.sampled for one in log.table.columns if one not in (*log.keys, log.label_column)]
    unread = [
        one
        for one in others
        if _TIME_NAME.search(plain_name(one.source))
        and not _OTHER_TIME_NAME.search(plain_name(one.source))
        and not (one.is_time or one.is_time_of_day or (one.is_list and one.separator is None))
        and one.distinct > 1
    ]
    if log.time is not None or not unread:
        return
    column = unread[0]
    what, remedy = (
        "values",
        (
            "If a pattern reads them (docs/lakes.md), declare the column in log.columns, such as "
            "{type: timestamp, format: '%d %B %Y %H:%M'}, and name it in log.event_time. Otherwise, write "
            "times such as 2026-01-31 10:00:00.5"
        ),
    )
    if column.type in ("float", "decimal"):
        what = "numbers with decimals"
        remedy = "Write whole seconds or milliseconds since 1970, or times such as 2026-01-31 10:00:00.5"
    questions.open.append(
        f"Does {column.source} have the time of each row? It has {what} such as {column.examples[0]!r}, in "
        "no notation that init knows. So the order of the rows is taken for their time, with the oldest row "
        f"first. {remedy}"
    )


def log_of(wishes: Wishes, questions: Questions, config: NewConfig) -> NewLog:
    """Returns the log with the roles of its columns, and records the choices.

    Raises:
        ConfigError, DataError: see `new_config`.
    """
    table = open_new_table(wishes.log, keys=(wishes.user, wishes.item))
    sample = table.sample
    table = with_lists(table) if sample.has_displays else table
    roles = _roles_of(table)

    def chosen(wish: str | None, fitting: Sequence[SampledColumn], question: str) -> NamedColumn | None:
        if wish is not None:
            return table.column(wish)
        if not fitting:
            return None
        return table.column(questions.choose(question, [one.source for one in fitting]))

    named_item = None if wishes.item is None else table.column(wishes.item)
    users, user_why = _possible(table, roles, "user", wishes.users, named_item)
    user = chosen(wishes.user, users, "Which column has the user?")
    items, item_why = _possible(table, roles, "item", wishes.items, user)
    item = chosen(wishes.item, items, "Which column has the item?")
    time, time_of_day = _times_of(wishes.time, table, roles)
    time = _with_order_of_dates(time, questions)
    table = _with_column(table, time)
    label = _chosen_label(wishes.label, table, roles.label, (user, item, time, time_of_day), questions)
    label = _with_items(_with_other_events(label, questions), item, wishes, questions)
    if sample.has_names and not sample.has_displays:
        _ask_about_user(user, user_why if wishes.user is None and len(users) == 1 else None, questions)
    if sample.has_names and not sample.has_displays and wishes.item is None:
        _ask_about_item(item, item_why if len(items) == 1 else None, label, questions)
    how = _BY_NAME if sample.has_names else "by the order and the values of the columns"
    keys = (
        ("user", user, user_why if wishes.user is None else "--user"),
        ("item", item, item_why if wishes.item is None else "--item"),
        ("time", time, how if wishes.time is None else "--time"),
        ("time of day", time_of_day, "the column of the time has only dates"),
    )
    _choose_roles(sample, keys, label, config)
    label_column = None if label.column is None else table.column(label.column.source)
    group = None if roles.group is None or not label.has_shown else table.column(roles.group.source)
    names = {"user": user, "item": item, "time": time, "time_of_day": time_of_day, "label": label_column}
    if sample.has_displays:
        names |= {"display": group, "items_before": table.first_list}
    named = renamed(table, names)
    by_source = {one.sampled.source: one for one in named.columns}

    def again(column: NamedColumn | None) -> NamedColumn | None:
        return None if column is None else by_source[column.sampled.source]

    keys_and_times = (again(user), again(item), _dates(again(time), time_of_day), again(time_of_day))
    log = NewLog(named, *keys_and_times, again(group), label, again(label_column))
    return replace(log, table=_with_column(named, log.time))


def _times_of(
    wish: str | None, table: NewTable, roles: Roles
) -> tuple[NamedColumn | None, NamedColumn | None]:
    """Returns the column of the time and, if it has only dates, the column with the times of day.

    Args:
        wish: `--time`: a column with dates and times, with dates, or with times of day; None if not given.
        table: the log.
        roles: the meaning of its columns, guessed from their names or their order.

    Raises:
        ConfigError: the column does not exist, or has times of day without a column of dates.
    """
    sampled = [one.sampled for one in table.columns]
    times = list(roles.time[:1]) if wish is None else [table.column(wish).sampled]
    of_day = roles.time_of_day if wish is None else time_of_day_of(times, sampled)
    if wish is not None and times[0].is_time_of_day:
        dates = [one for one in roles.time if one.type == "date" or has_midnights(one)]
        if not dates:
            raise ConfigError(
                f"--time {wish}: the column has times of day such as {times[0].examples[0]!r}, but no column "
                "of the log has their dates",
                "pass a column with dates, or with dates and times, as --time; or add one to the log",
            )
        times, of_day = dates, times[0]
    time = table.column(times[0].source) if times else None
    return time, None if of_day is None else table.column(of_day.source)


def _with_order_of_dates(time: NamedColumn | None, questions: Questions) -> NamedColumn | None:
    """Returns the column of the time. Asks whether its dates begin with the day or with the month."""
    if time is None or time.sampled.other_format is None:
        return time
    column = time.sampled
    chosen = questions.choose(
        f"How are the times of {column.source} written, such as {column.examples[0]!r}?",
        [column.format, str(column.other_format)],
    )
    return replace(time, sampled=replace(column, format=chosen, other_format=None))


def _dates(time: NamedColumn | None, time_of_day: NamedColumn | None) -> NamedColumn | None:
    """Returns the column of the time. It has the type date if another column has the times of day."""
    return time if time is None or time_of_day is None else replace(time, type="date")


def _with_column(table: NewTable, changed: NamedColumn | None) -> NewTable:
    """Returns the table after `changed` has replaced the column with the same name."""
    columns = [changed if changed and one.name == changed.name else one for one in table.columns]
    return replace(table, columns=tuple(columns))


def _roles_of(table: NewTable) -> Roles:
    """Returns which of the log's columns are the user, the item and so on, guessed from names or order."""
    sample, columns = table.sample, [one.sampled for one in table.columns]
    if sample.has_displays:
        return roles_of_displays(columns)
    return roles_of(columns, sample.rows.num_rows, has_names=sample.has_names)


def _possible(
    table: NewTable, roles: Roles, role: str, location: str | None, other: NamedColumn | None
) -> tuple[Sequence[SampledColumn], str]:
    """Returns the columns of the log that may have the ids of `role`, and the reason in a few words.

    First, the names of the columns are compared with usual names. This may not select exactly one column, or
    the table of users or items may lack the ids of this column. Then the function chooses the column whose
    values are the ids of the table. Without such a table, it returns all columns whose names say that they
    contain ids.

    Args:
        table: the log.
        roles: the meaning of its columns, guessed from their names or their order.
        role: user or item.
        location: the path of the table of users or items; None without such a table.
        other: the column of the item if `role` is the user, and the reverse; None if it is not known.
    """
    taken = [] if other is None else [other.sampled.source]
    named = [one for one in (roles.user if role == "user" else roles.item) if one.source not in taken]
    has_names = table.sample.has_names
    by_name = _BY_NAME if has_names else "by the order and the values of the columns"
    attributes = None if location is None or table.sample.has_displays else open_new_table(location)
    is_decided = len(named) == 1 and (attributes is None or key_by_table(attributes, named) is not None)
    if is_decided or table.sample.has_displays:
        return named, by_name
    known = [*roles.time[:1], *([roles.label.column] if roles.label.column else [])]
    if role == "item" or other is None:
        known += (roles.user if role == "item" else roles.item)[:1]
    taken += [one.source for one in known]
    possible = possible_keys(
        [one.sampled for one in table.columns if one.sampled.source not in taken], table.sample.rows.num_rows
    )
    if attributes is not None:
        by_table = key_by_table(attributes, named) or key_by_table(attributes, possible)
        if by_table is not None:
            return [by_table], f"its values are the ids of the table of {role}s"
    if named or not has_names:
        return named, by_name
    return [one for one in possible if is_id_name(one.source)], _BY_ID_NAME


def _with_other_events(label: LabelGuess, questions: Questions) -> LabelGuess:
    """Returns the label. If the log has events of shown items and clicks, asks what other events mean."""
    if not (label.shown and label.left_out) or label.column is None:
        return label
    events = list(label.left_out)
    chosen = questions.choose(
        f"{label.column.source} has events of shown items, {list(label.shown)}, and clicks, "
        f"{list(label.weights)}. What do the events {events} mean?",
        [_LEFT_OUT, _NOT_CLICKED, _CLICKED],
    )
    if chosen == _LEFT_OUT:
        return label
    if chosen == _NOT_CLICKED:
        return replace(label, shown=(*label.shown, *events), left_out=())
    return replace(label, weights={**label.weights, **dict.fromkeys(events, 1.0)}, left_out=())


def _with_items(
    label: LabelGuess, item: NamedColumn | None, wishes: Wishes, questions: Questions
) -> LabelGuess:
    """Returns the label. Leaves out events whose rows have no item, such as views of other pages."""
    if label.column is None or not label.weights or item is None:
        return label
    has_item = pc.is_valid(item.sampled.values.combine_chunks())
    shares = {
        event: pc.mean(pc.cast(has_item.filter(_has_events(label.column, [event])), pa.float64())).as_py()
        for event in label.weights
    }
    without = [event for event, share in shares.items() if (share or 0) <= _ROWS_WITH_ITEM]
    if not without or len(without) == len(shares):
        return label
    if wishes.item is None:
        source = item.sampled.source
        questions.open.append(
            f"Do rows with the events {without} have an item in another column than {source}? They are left "
            f"out, because they have no {source}. If another column has the items of all rows, pass it as "
            "--item"
        )
    weights = {event: weight for event, weight in label.weights.items() if event not in without}
    return replace(label, weights=weights, left_out=(*label.left_out, *without))


def _has_events(column: SampledColumn, events: Iterable[str]) -> pa.Array:
    """Returns, for each of n rows, whether it has one of the events; false for rows without an event."""
    return pc.is_in(column.values.combine_chunks(), pa.array([*events], pa.string()))


def _ask_about_user(user: NamedColumn | None, why: str | None, questions: Questions) -> None:
    """Records a question if the column of the user may contain something else, such as orders.

    Args:
        user: the column of the user; None if none was found.
        why: the reason for the choice; None if it was named, or chosen from several columns.
    """
    if user is None:
        return
    column, doubt = user.sampled, _doubt("user", user.sampled, why)
    if is_unique(column):
        doubt = "nearly every row has another value, so users would have one row each"
    if doubt:
        questions.open.append(
            f"Does {column.source} have the user of each row? It was taken, but {doubt}. If another column "
            "has the user, pass it as --user"
        )


def _ask_about_item(
    item: NamedColumn | None, why: str | None, label: LabelGuess, questions: Questions
) -> None:
    """Records a question if the column of the item may contain something else, or lacks many values.

    Args:
        item: the column of the item; None if none was found.
        why: the reason for the choice; None if it was chosen from several columns.
        label: says which rows are clicks. Rows of events that are left out need no item.
    """
    if item is None:
        return
    column, doubt = item.sampled, _doubt("item", item.sampled, why)
    missing = share_without(column, label)
    if missing > MOST_NULL_KEYS:
        doubt = f"{missing:.1%} of the rows have no value of it, and such rows are quarantined"
    if doubt:
        questions.open.append(
            f"Does {column.source} have the item of each row? It was taken, but {doubt}. If another column "
            "has the item, pass it as --item"
        )


def _doubt(role: str, column: SampledColumn, why: str | None) -> str | None:
    """Returns in a few words why a column may not be the user or the item; None if there is no doubt."""
    if why == _BY_ID_NAME:
        return "only because its name says that it has ids"
    return doubt_of_name(column, role) if why == _BY_NAME else None


def is_unique(column: SampledColumn) -> bool:
    """Returns whether nearly all rows with a value have different values."""
    return column.distinct > max(_FEW_USERS, _UNIQUE_SHARE * (len(column.values) - column.nulls))


def share_without(column: SampledColumn, label: LabelGuess) -> float:
    """Returns the share of rows without a value, except rows that are left out because of their event."""
    missing = pc.is_null(column.values.combine_chunks())
    if label.left_out and label.column is not None and column.source != label.column.source:
        missing = pc.and_(missing, _has_events(label.column, (*label.weights, *label.shown)))
    return float(pc.mean(pc.cast(missing, pa.float64())).as_py() or 0)


def _choose_roles(
    sample: TableSample,
    keys: Iterable[tuple[str, NamedColumn | None, str]],
    label: LabelGuess,
    config: NewConfig,
) -> None:
    """Records the choice of the user, the item, the time and the clicks, with the reasons.

    Args:
        sample: the first rows of the log.
        keys: for each role its name, its column, and the reason for the choice.
        label: the column, and its values, that make a row a click.
        config: the configuration.
    """
    if sample.has_displays:
        config.choose("format: displays", "the last field of a line lists the shown items and their clicks")
    for role, column, why in keys:
        if column is not None:
            config.choose(f"{role}: {column.sampled.source}", why)
    config.choose(f"clicks: {_clicks_of(label)}", label.why)
    if label.left_out:
        config.choose(
            f"left out: the events {list(label.left_out)}",
            "these events do not show that the user chose the item, or have no item",
        )


def _chosen_label(
    wish: str | None,
    table: NewTable,
    label: LabelGuess,
    others: Sequence[NamedColumn | None],
    questions: Questions,
) -> LabelGuess:
    """Returns which rows are clicks. Asks if the rows do not show it.

    Args:
        wish: the value of `--label`; None without this option.
        table: the log.
        label: which rows seem to be clicks.
        others: the columns with other roles, such as user or time.
        questions: answers the questions.
    """
    columns = [one.sampled for one in table.columns]
    if wish is not None:
        wished = table.column(wish).sampled
        _refuse_two_texts(wished)
        return _wished_label(wished, questions)
    taken = [None if one is None else one.sampled for one in others]
    if table.sample.has_names and (label.column is None or label.column.type != "string"):
        label = _asked_flag(label, columns, taken, questions)
    if label.column is not None and label.column.type != "string" and table.sample.has_names:
        return _flag_or_rating(label, columns, questions)
    if not label.is_certain:
        return _confirmed(label, questions)
    if label.column is None and table.sample.has_names:
        return _asked_events(possible_events(columns, taken), questions)
    return label


def _wished_label(column: SampledColumn, questions: Questions) -> LabelGuess:
    """Returns the label in the column that `--label` names.

    Raises:
        ConfigError: the column contains neither numbers nor only a few different strings.
    """
    if column.type != "string":
        label = label_of([column], has_names=True)
        return (
            label
            if label.column is not None
            else _plausible_flag(column) or LabelGuess(column, has_shown=True, why="--label")
        )
    label_of_events = _plausible_flag(column) if column.nulls and column.distinct == 1 else events_of(column)
    if label_of_events is None:
        raise ConfigError(
            f"--label {column.source}: the column has {column.distinct:,} different values, such as "
            f"{column.examples[0]!r}; a label is 0 or 1, a number, or one of a few events",
            "name the column that says what a user did, or omit --label if every row is a click",
        )
    if len(set(label_of_events.weights.values())) == 1 and len(label_of_events.weights) > 1:
        questions.open.append(
            f"Which events of {column.source} are clicks? {list(label_of_events.weights)} were all taken, "
            "with equal weights; correct log.label"
        )
    return label_of_events


def _refuse_two_texts(column: SampledColumn) -> None:
    """Raises ConfigError if a column has two values, and it is not known which of them means a click."""
    label = events_of(column) if column.type == "string" and column.distinct == 2 else None
    if label is None or CERTAIN_EVENT_NAME.search(plain_name(column.source)):
        return
    if not label.has_shown and len(label.weights) == 2 and set(label.weights.values()) == {1.0}:
        raise ConfigError(
            f"--label {column.source}: the column has the values {[*label.weights]}, and init does not know "
            "which of them means a click",
            "write 1 or yes for a click and 0 or no for other rows; or omit --label, and set "
            "log.label.positive in the new configuration to the value of a click",
        )


def _asked_flag(
    label: LabelGuess,
    columns: Sequence[SampledColumn],
    others: Sequence[SampledColumn | None],
    questions: Questions,
) -> LabelGuess:
    """Returns the label. Asks about a column whose name means a click, but whose values are not only 0 and 1.

    Args:
        label: the label in another column, or no label.
        columns: the columns of the log, any of which may be such a column.
        others: columns that have another role, such as user or time.
        questions: answers the question.
    """
    if label.column is not None and LABEL_NAME.search(label.column.source):
        return label
    taken = {one.source for one in others if one is not None}
    ids = possible_keys(columns, max((len(one.values) for one in columns), default=0))
    for column in columns:
        name = plain_name(column.source)
        if (
            column.source in taken
            or not LABEL_NAME.search(column.source)
            or NO_LABEL_NAME.search(column.source)
            or column.is_time
            or column.is_list
            or is_id_name(column.source)
            or (column.is_number and _NO_COUNT_NAME.search(name))
        ):
            continue
        guess = _plausible_flag(column)
        is_known = guess is not None and (guess.has_empty or column.is_number)
        if guess is not None and (is_known or not is_attribute(column, ids)):
            every_row = _EVERY_ROW if label.column is None else _clicks_of(label)
            chosen = questions.choose(
                f"Which rows are clicks? {column.source} has {guess.why}.", [_clicks_of(guess), every_row]
            )
            return guess if chosen != every_row else label
    return label


def _plausible_flag(column: SampledColumn) -> LabelGuess | None:
    """Returns the most likely label in a column whose values are not only 0 and 1; None if there is none.

    If only some rows have a value, these are clicks. Of numbers, the positive ones are clicks. Of two
    strings, the rarer one is a click.
    """
    values = column.values.drop_null()
    if not len(values):
        return None
    examples, shown = list(column.examples), f"values such as {', '.join(map(repr, column.examples))}"
    if column.type in ("bool", "string"):
        if column.distinct == 1 and column.nulls and examples[0].strip().lower() not in NO_TEXTS:
            events = {examples[0]: 1.0} if column.type == "string" else {}
            why = f"no other value than {examples[0]!r}, and is empty in {column.nulls:,} rows"
            return LabelGuess(column, None, events, has_shown=True, has_empty=True, why=why)
        if column.type == "string" and column.distinct == 2 and not column.nulls:
            return LabelGuess(
                column, None, {examples[1]: 1.0}, shown=(examples[0],), has_shown=True, why=shown
            )
        return None
    if not column.is_number:
        return None
    counts = numbers_of(values)
    low, positive = float(counts.min()), counts[counts > 0]
    if column.nulls and low > 0 and column.distinct <= _FEW_COUNTS:
        why = f"{shown}, and is empty in {column.nulls:,} rows"
        least = None if column.distinct == 1 and low == 1 else low
        return LabelGuess(column, least, has_shown=True, has_empty=True, why=why)
    if low <= 0:
        least = float(positive.min()) if len(positive) else 1.0
        return LabelGuess(column, least, has_shown=True, why=shown)
    return (
        LabelGuess(column, float(counts.max()), has_shown=True, why=shown) if column.distinct == 2 else None
    )


def _flag_or_rating(label: LabelGuess, columns: Sequence[SampledColumn], questions: Questions) -> LabelGuess:
    """Returns the label. If the log has a flag, such as `purchased`, and a rating, asks which one to use."""
    labels = {one.column.source: one for one in labels_of_numbers(columns) if one.column is not None}
    if len(labels) < 2 or label.column is None or label.column.source not in labels:
        return label
    return labels[questions.choose("Which column says which rows are clicks?", [*labels])]


def _confirmed(label: LabelGuess, questions: Questions) -> LabelGuess:
    """Returns the label. Asks whether its column says what users did; if not, every row is a click."""
    events, source = _clicks_of(label), "" if label.column is None else label.column.source
    left_out = f", and rows with {list(label.left_out)} are left out" if label.left_out else ""
    chosen = questions.choose(
        f"Does {source} say what the user did? If so, clicks are {events}{left_out}.", ["yes", _EVERY_ROW]
    )
    return LabelGuess(None) if chosen == _EVERY_ROW else label


def _asked_events(columns: Sequence[SampledColumn], questions: Questions) -> LabelGuess:
    """Asks which column says what users did, and returns the label. Without one, every row is a click."""
    if not columns:
        return LabelGuess(None)
    chosen = questions.choose(
        "Which column says what the user did (viewed, bought)?",
        [_EVERY_ROW, *(column.source for column in columns)],
    )
    if chosen == _EVERY_ROW:
        return LabelGuess(None)
    return _wished_label(next(column for column in columns if column.source == chosen), questions)


def _clicks_of(label: LabelGuess) -> str:
    """Returns a text for the list of choices: which rows of the log are clicks."""
    if label.column is None:
        return "every row"
    if label.weights and not label.has_empty:
        return f"the events {list(label.weights)} of {label.column.source}"
    if label.has_empty:
        return f"the rows with a value of {label.column.source}"
    if label.positive_at_least is not None:
        return f"{label.column.source} of at least {label.positive_at_least:g}"
    return f"{label.column.source} is 1"
