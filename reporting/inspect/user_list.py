"""Reads the published list of one user, and the features of the user and the items, without a Spark session.

Row groups are skipped if their statistics show that the user is not in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from conf.counted import counted
from conf.errors import DataError
from conf.types import Negatives, Scope
from reporting.facts.list_facts import History, histories
from reporting.facts.parquet import rows_where
from reporting.facts.run_facts import published_facts
from scoring.inputs.requests import CANDIDATES, EXCLUDED, VARIANT
from storage.dataset import read_dataset, read_spec
from storage.feature_spec import ITEM_KEY, USER_KEY, FeatureSpec
from storage.manifest import Manifest, data_files, is_published, read_manifest
from storage.paths import Lake, Partition

# Columns of a list that are shown; lists of earlier releases have no reason.
ENTRY = ("position", "item_id", "score", "reason")
# Columns that differ between the variants of an experiment.
_OF_VARIANT = ("model_version", "workflow_version", VARIANT)


@dataclass(frozen=True)
class InspectedList:
    """The list of one user on one date, and the features and clicks of the user.

    Attributes:
        user: the id of the user.
        run_date: the date of the list.
        facts: the facts in the manifest of the lists, such as model_version, workflow_version, scored_at and
            k. During an experiment, they contain the variant of the user, and the versions are its own.
        spec: the features of the workflow version.
        entries: one dictionary {position, item_id, score, reason} per list entry, ordered by position.
        user_features: maps each feature of the user to its encoded value.
        item_features: maps each item to its features: a mapping from the name of a feature to its encoded
            value. Items that are no longer in the table `items` are left out.
        history: the user's clicks and impressions on the days of the dataset; None if the dataset no longer
            exists.
    """

    user: str
    run_date: str
    facts: Mapping[str, Any]
    spec: FeatureSpec
    entries: list[dict[str, Any]]
    user_features: dict[str, Any]
    item_features: dict[str, dict[str, Any]]
    history: History | None


def find(lake: Lake, run_date: str, user: str, negatives: Negatives | None = None) -> InspectedList:
    """Returns the published list of a user. `negatives` is the section of the configuration.

    Raises:
        DataError: there are no lists of this date, or the lists were held back. Or the user is unknown, or
            had no candidates.
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
    return InspectedList(user, run_date, facts, spec, entries, own_features.get(user, {}), items, history)


def _facts_of_list(manifest: Manifest, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the facts of the lists; during an experiment, with the model that ranked for the user."""
    facts = dict(manifest.facts)
    if rows and VARIANT in rows[0]:
        if rows[0]["model_version"] != facts["model_version"]:
            facts.pop("refit_of", None)
        facts |= {name: rows[0][name] for name in _OF_VARIANT}
    return facts


def _lists_of(lake: Lake, run_date: str) -> Manifest:
    """Returns the manifest of the lists of a date. Raises DataError if no lists are published."""
    partition = lake.recommendations.partition(run_date)
    changes = published_facts(lake.list_changes.partition(run_date))
    if not is_published(partition) and changes is not None and changes["held_back"]:
        before = changes["before"]
        settings = [excess["setting"] for excess in changes["excesses"]]
        raise DataError(
            f"the lists of {run_date} were held back: they exceed the limits {settings} of score.stop",
            f"ask for the last published lists: --date {before}" if before else "see docs/delivery.md",
        )
    return read_manifest(partition)


def _no_list_error(lake: Lake, run_date: str, user: str, version: str, known: bool) -> DataError:
    """Returns the error that says why the user has no list."""
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
        f"user {user!r} is known on {run_date} but had no candidates: {reason}",
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
