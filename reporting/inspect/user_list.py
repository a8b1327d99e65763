"""Reads the published list of one user, and the features of the user and the items, without a Spark session.

Row groups are skipped if their statistics show that the user is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.messages import counted, printable
from conf.types import Negatives, Scope
from etl.latest.item_titles import ItemTitle, titles_of
from etl.workflow.fitted_workflow import has_chains, load_local
from reporting.facts.run_facts import UserHistory, histories, published_facts, rows_where
from reporting.terminal import text_table
from scoring.requests import CANDIDATES, EXCLUDED, VARIANT
from storage.dataset import read_dataset, read_spec
from storage.feature_spec import ITEM_KEY, NULL_ID, OOV_ID, PAD_ID, USER_KEY, FeatureSpec
from storage.manifest import Manifest, data_files, is_published, read_manifest
from storage.paths import LakePaths, Partition

# The columns of a list that are shown. Lists that an earlier release wrote have no column `reason`.
ENTRY = ("position", "item_id", "score", "reason")

# The entries of `facts` that differ between the variants of an experiment.
_OF_VARIANT = ("model_version", "workflow_version", VARIANT)


@dataclass(frozen=True)
class InspectedList:
    """The list of one user on one date, and the features and clicks of the user.

    Attributes:
        user: the id of the user.
        run_date: the date of the list.
        facts: values from the manifest of the lists, such as model_version, workflow_version, scored_at and
            k. During an experiment, they contain the variant of the user, and the versions are those of this
            variant.
        spec: the features of the workflow version.
        entries: one dictionary {position, item_id, score, reason} per list entry, ordered by position. The
            dictionaries have the key `title`, too, if the date has titles of items.
        user_features: maps each feature of the user to its encoded value.
        item_features: maps each item to its features: a mapping from the name of a feature to its encoded
            value. Items that are no longer in the table `items` are left out.
        history: the user's clicks and impressions on the days of the dataset; None if the dataset no longer
            exists.
        titles: the titles of the listed items and of the clicked items; empty if no titles were published.
    """

    user: str
    run_date: str
    facts: Mapping[str, Any]
    spec: FeatureSpec
    entries: list[dict[str, Any]]
    user_features: dict[str, Any]
    item_features: dict[str, dict[str, Any]]
    history: UserHistory | None
    titles: Mapping[str, ItemTitle] = field(default_factory=dict)


def find(lake: LakePaths, run_date: str, user: str, negatives: Negatives | None = None) -> InspectedList:
    """Returns the published list of a user. `negatives` is the section of this name in the configuration.

    Raises:
        DataError: there are no lists of this date, the lists were not published, the user is unknown, or the
            user had no candidates.
    """
    manifest = _lists_of(lake, run_date)
    columns: list[str] = [name for name in (*ENTRY, *_OF_VARIANT) if name in dict(manifest.schema)]
    rows = _rows(lake.recommendations.partition(run_date), manifest, columns, pc.field("user_id") == user)
    facts = _facts_of_list(manifest, rows)
    version = str(facts["workflow_version"])
    spec = read_spec(lake, version)
    users = lake.users(version).partition(run_date)
    own_features = _features(users, spec, "user", USER_KEY, [user])
    if not rows:
        raise _no_list_error(lake, run_date, user, version, known=user in own_features)
    shown = [{name: row[name] for name in ENTRY if name in row} for row in rows]
    entries = sorted(shown, key=lambda row: int(row["position"]))
    items = _features(
        lake.items(version).partition(run_date), spec, "item", ITEM_KEY, [row["item_id"] for row in entries]
    )
    history = None
    if is_published(lake.datasets.partition(run_date)):
        history = histories(lake, read_dataset(lake, run_date), [user], negatives).get(user)
    clicked = history.most_clicked(_CLICKED) if history else []
    shown_items = [*(row["item_id"] for row in entries), *(item for item, _, _ in clicked)]
    titles = titles_of(lake, run_date, shown_items)
    for row in entries if titles else ():
        row["title"] = titles[row["item_id"]].title
    return InspectedList(
        user, run_date, facts, spec, entries, own_features.get(user, {}), items, history, titles
    )


def _facts_of_list(manifest: Manifest, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the `facts` of the lists; during an experiment, with the versions of the user's variant."""
    facts = dict(manifest.facts)
    if rows and VARIANT in rows[0]:
        if rows[0]["model_version"] != facts["model_version"]:
            facts.pop("refit_of", None)
        facts |= {name: rows[0][name] for name in _OF_VARIANT}
    return facts


def _lists_of(lake: LakePaths, run_date: str) -> Manifest:
    """Returns the manifest of the lists of a date. Raises DataError if no lists are published."""
    partition = lake.recommendations.partition(run_date)
    changes = published_facts(lake.list_changes.partition(run_date))
    if not is_published(partition) and changes is not None and changes["held_back"]:
        before = changes["before"]
        settings = [excess["setting"] for excess in changes["excesses"]]
        raise DataError(
            f"the lists of {run_date} were not published: they exceed the limits {settings} of score.stop",
            f"ask for the last published lists: --date {before}" if before else "see docs/delivery.md",
        )
    return read_manifest(partition)


def _no_list_error(lake: LakePaths, run_date: str, user: str, version: str, known: bool) -> DataError:
    """Returns the error with the reason why the user has no list."""
    users = lake.users(version).partition(run_date)
    if not known:
        return DataError(
            f"user {user!r} is unknown on {run_date}: {users.table} has "
            f"{counted(read_manifest(users).rows, 'other user')}",
            "check that the id is written as in the log. build_features adds a user to this table when it "
            "first reads a row of the user in the log or, if `users` is configured, in the table of users",
        )
    candidates = lake.candidates(version).partition(run_date)
    manifest = read_manifest(candidates)
    rows = _rows(candidates, manifest, [CANDIDATES, EXCLUDED], pc.field(USER_KEY) == user)
    items = read_manifest(lake.candidate_items(version).partition(run_date)).rows
    excluded = len(rows[0][EXCLUDED] or ()) if rows else 0
    listed = len(rows[0][CANDIDATES] or ()) if rows else 0
    if rows and rows[0][CANDIDATES] is None:
        listed = items - excluded
    if listed:
        return DataError(
            f"user {user!r} has {counted(listed, 'candidate')} on {run_date}, but no list: the lists are "
            "older than the candidates",
            f"run score_daily for {run_date} again",
        )
    reason = "the candidate list is empty"
    if excluded == items:
        reason = "the only item is excluded" if items == 1 else f"all {items:,} items are excluded"
    return DataError(
        f"user {user!r} is known on {run_date}, but has no candidates: {reason}",
        "look at the exclusions, filters and sources in the section `candidates` of the configuration",
    )


def _features(
    partition: Partition, spec: FeatureSpec, scope: Scope, key: str, wanted: list[str]
) -> dict[str, dict[str, Any]]:
    """Reads the encoded features of some users or items.

    The result maps each key to a mapping from the name of a feature to its encoded value. Keys that are not
    in the table are left out.

    Args:
        partition: the partition of the table `users` or `items`.
        spec: the features of the workflow version.
        scope: `user` or `item`.
        key: name of the key column.
        wanted: the keys of the users or items.
    """
    names = [feature.name for feature in spec.scoped(scope)]
    rows = _rows(partition, read_manifest(partition), [key, *names], pc.field(key).isin(wanted))
    return {row[key]: {name: row[name] for name in names} for row in rows}


def _rows(
    partition: Partition, manifest: Manifest, columns: list[str], condition: pc.Expression
) -> list[dict[str, Any]]:
    """Reads the rows of a published partition that meet a condition."""
    return rows_where(data_files(partition, manifest), columns, condition)


# Functions that format the list of a user as text for a terminal.

_RESERVED = {PAD_ID: "(none)", NULL_ID: "(null)", OOV_ID: "(unknown or rare)"}
_CLICKED = 10
_TITLE_WIDTH = 48
Names = Mapping[str, Mapping[int, str]]


def decoded_names(lake: LakePaths, user_list: InspectedList) -> Names:
    """Returns the raw values of the ids that occur in the features of the user and of the listed items.

    The result maps each feature to a mapping from ids to raw values. Features without a vocabulary are left
    out. If the lake no longer has the workflow, or an early release wrote it, the result is empty. In this
    case, the page shows ids instead of raw values.

    Raises:
        DataError: the workflow is damaged.
    """
    version = str(user_list.facts["workflow_version"])
    if not has_chains(lake, version):
        return {}
    workflow = load_local(lake, version)
    occurring: dict[str, set[int]] = {}
    for feature in user_list.spec.features:
        if feature.kind == "dense":
            continue
        try:
            workflow.vocabulary_of(feature.name)
        except ConfigError:  # several values share a hashed id, so none is shown
            continue
        rows = (user_list.user_features, *user_list.item_features.values())
        occurring[feature.name] = {index for row in rows for index in _ids(row.get(feature.name))}
    return workflow.decode_ids(occurring)


def page(user_list: InspectedList, names: Names) -> str:
    """Returns the text of the page.

    It shows model and workflow, the features of the user, the list, the features of the items, and clicks.
    """
    facts = user_list.facts
    refit_of = f" (refit of {facts['refit_of']})" if facts.get("refit_of") else ""
    variant = f"variant {facts['variant']} of {facts['experiment']['name']}, " if facts.get("variant") else ""
    parts = [
        f"User {printable(user_list.user)}, lists of {user_list.run_date}",
        f"  {variant}model {facts['model_version']}{refit_of}, workflow {facts['workflow_version']}, "
        f"scored {facts['scored_at']}",
        f"\nUser features\n  {described(user_list.user_features, names) or 'none'}",
        f"\nList ({len(user_list.entries)} of {facts['k']})\n{_list_table(user_list)}",
        f"\nItem features\n{_item_lines(user_list, names)}",
        f"\nClicked in the window\n{_clicked(user_list)}",
    ]
    return "\n".join(parts)


def described(features: Mapping[str, Any], names: Names) -> str:
    """Formats features as `name=value, …`. An id is shown as its raw value if this value is known."""
    return ", ".join(
        f"{printable(name)}={printable(_value(value, names.get(name)))}" for name, value in features.items()
    )


def _value(value: Any, names: Mapping[int, str] | None) -> str:
    """Formats one value, or a list of ids, as text."""
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, names) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    if names is None or value is None:
        return str(value)
    return names.get(value) or _RESERVED.get(value) or f"id {value}"


def _ids(value: Any) -> Iterable[int]:
    """Returns the ids in the value of a feature, which is a list of ids, a single id, or None."""
    return value if isinstance(value, list) else () if value is None else (value,)


def _list_table(user_list: InspectedList) -> str:
    """Returns a table of the list, ordered by position, with the earlier clicks on each item."""
    rows = []
    for entry in user_list.entries:
        clicks, shown = user_list.history.items.get(entry["item_id"], (0, 0)) if user_list.history else (0, 0)
        before = f"{clicks} of {shown}" if shown else "-"
        score = f"{entry['score']:.6f}"
        title = [_short(entry["title"])] if user_list.titles else []
        rows.append(
            [str(entry["position"]), entry["item_id"], *title, score, entry.get("reason", "-"), before]
        )
    titled = ["title"] if user_list.titles else []
    headers = ["#", "item", *titled, "score", "reason", "clicked before"]
    return text_table(headers, rows, right=(0, headers.index("score")))


def _item_lines(user_list: InspectedList, names: Names) -> str:
    """Returns one line of text per listed item, with the features of the item."""
    lines = []
    for entry in user_list.entries:
        features = user_list.item_features.get(entry["item_id"])
        text = "no longer among the items" if features is None else described(features, names) or "none"
        lines.append(f"  {printable(entry['item_id'])}: {text}")
    return "\n".join(lines)


def _clicked(user_list: InspectedList) -> str:
    """Returns a table of the items that the user clicked most."""
    if user_list.history is None:
        return "  the dataset of this date no longer exists"
    most = user_list.history.most_clicked(_CLICKED)
    if not most:
        return "  nothing"
    titled = ["title"] if user_list.titles else []
    rows = [
        [item, *(_short(user_list.titles[item].title) for _ in titled), str(clicks), str(shown)]
        for item, clicks, shown in most
    ]
    headers = ["item", *titled, "clicks", "shown"]
    return text_table(headers, rows, right=(headers.index("clicks"), headers.index("shown")))


def _short(title: str) -> str:
    """Returns a title on one line, truncated if it is long."""
    words = " ".join(title.split())
    return words if len(words) <= _TITLE_WIDTH else f"{words[: _TITLE_WIDTH - 1]}…"
