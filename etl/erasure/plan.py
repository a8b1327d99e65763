"""Plans the erasure of users: finds their rows in all files, and computes new manifests of partitions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.types import SPLITS, Config
from etl.erasure.lake_tables import (
    COMPUTED_AGAIN,
    FEATURES,
    OF_LISTS,
    PREPARED,
    PROFILES,
    QUARANTINE,
    SCORES,
    USER_ID,
    VALUE_COUNTS,
    WORKFLOW,
    PublishedPartition,
    TableRule,
    UsersToErase,
    UserTables,
    published_partitions,
    rule_of,
    user_tables,
)
from etl.raw.erased_users import ERASED
from etl.raw.files import CONTENT, COPIES
from etl.raw.row_rules import MISDATED, Misdated
from etl.workflow.feature_plan import preparation
from etl.workflow.fitted_workflow import read_version, saved_versions
from storage.dataset import Dataset, Member
from storage.feature_spec import LABEL, ROW_ID, USER_KEY
from storage.manifest import Manifest, combined_digest, data_files, digest_of
from storage.paths import LakePaths
from storage.read_parquet import read_file

_RECOMMENDATIONS, _USERS = "recommendations", "users"
_WITH_VALUES = (PROFILES, "quality")

# The partitions of the tables _FIRST are published first, those of _LAST last, and all others in between. To
# find the users' rows in some tables, the plan needs their rows in other tables. It publishes those other
# tables later. So if the job is killed, the next attempt still finds the users' rows in them.
_FIRST, _LAST = (SCORES, _RECOMMENDATIONS, "candidates", _USERS), (FEATURES,)


@dataclass(frozen=True)
class UserRows:
    """The rows of the users in one partition.

    Attributes:
        published: the published partition that contains the rows.
        rule: the rule that finds the rows.
        files: for each file with rows of the users, maps its path to the number of these rows. Paths have the
            form that the manifest uses.
        rows: the users' rows, with the columns that the rule reads.
    """

    published: PublishedPartition
    rule: TableRule
    files: Mapping[str, int]
    rows: pa.Table

    @property
    def removed(self) -> int:
        """Returns the number of rows that will be removed; 0 for vocabularies, whose rows stay."""
        return 0 if self.rule.keeps_rows else sum(self.files.values())


@dataclass(frozen=True)
class ErasurePlan:
    """The plan of an erasure.

    Attributes:
        partitions: all partitions, in the order in which they are published.
        rows: for each partition with rows of the users, maps its path to these rows.
        manifests: maps the path of each partition to its new manifest. The manifest lists files by their old
            paths.
        digests: maps the old digest of each changed partition to its new digest.
        emptied: paths of partitions that are emptied, because the next run computes them again from the raw
            log. Their statistics include the users' rows.
        workflows: maps each workflow version to its tables with ids of users.
    """

    partitions: Sequence[PublishedPartition]
    rows: Mapping[str, UserRows]
    manifests: Mapping[str, Manifest]
    digests: Mapping[str, str]
    emptied: frozenset[str]
    workflows: Mapping[str, UserTables] = field(default_factory=dict)

    @property
    def days(self) -> set[str]:
        """Returns the days whose partitions have rows of the users."""
        others = (WORKFLOW, COPIES)  # The partitions of these tables may have a name that is not a day.
        return {one.published.partition.dt for one in self.rows.values() if one.published.kind not in others}

    @property
    def changed(self) -> list[PublishedPartition]:
        """Returns the partitions that will be published again."""
        return [
            one
            for one in self.partitions
            if one.path in self.rows or one.path in self.emptied or self.manifests[one.path] != one.manifest
        ]


def plan_erasure(
    lake: LakePaths, config: Config, users: UsersToErase, known: Mapping[str, str]
) -> ErasurePlan:
    """Reads the key columns of all tables, and plans the erasure. The lake stays unchanged.

    Args:
        lake: data lake whose tables are read.
        config: the configuration, with the names of the raw log's columns.
        users: the users to erase.
        known: maps old digests of partitions to new digests. An earlier attempt, which was killed, recorded
            them.

    Raises:
        DataError: a manifest or a file is damaged.
    """
    workflows = {
        version: user_tables(read_version(lake, version)["chains"], users.column)
        for version in saved_versions(lake)
    }
    partitions = sorted(published_partitions(lake, config), key=_rank)
    rows: dict[str, UserRows] = {}
    row_ids: dict[str, np.ndarray] = {}
    for published in sorted(partitions, key=lambda one: one.kind != FEATURES):
        rule = rule_of(published, users, workflows, row_ids)
        if rule is None or (matched := _find(published, rule)) is None:
            continue
        rows[published.path] = matched
        if published.kind == FEATURES:
            dt = published.partition.dt
            ids = matched.rows[ROW_ID].to_numpy()
            row_ids[dt] = np.union1d(row_ids.get(dt, ids), ids)
    changes, done = DigestChanges(known), frozenset(known.values())
    logged = {path: _logged_rows(one, config) for path, one in rows.items()}
    removed = _removed_by_day(rows, logged)
    unknown = _unknown_days(partitions)
    recounted = {dt for dt, _ in (*removed, *unknown)}
    drafts = {
        one.path: _draft(one, rows.get(one.path), users, logged, removed, recounted, done)
        for one in partitions
    }
    emptied = frozenset(one.path for one in partitions if _is_computed_again(one, rows, removed, unknown))
    settled = settle(
        [one for one in partitions if one.path not in emptied],
        drafts,
        changes,
        _removed_clicks(rows),
        config,
    )
    manifests = {one.path: _with_lists(one, settled[one.path], rows, partitions, done) for one in partitions}
    return ErasurePlan(partitions, rows, manifests, changes.changes, emptied, workflows)


def with_ids_of_lists(lake: LakePaths, config: Config, users: UsersToErase) -> UsersToErase:
    """Returns the users, with the other ids under which lists of these users are stored.

    If ids are strings in the log and integers in the table `users`, a list of the user `00007` may be stored
    under the id 7. But if the log has rows of a user 7, this list belongs to that user. The id 7 is then not
    added.

    Raises:
        DataError: a manifest or a file is damaged.
    """
    others = users.integers - users.ids
    if not users.by_integer or not others:
        return users
    plan = plan_erasure(lake, config, replace(users, ids=others), {})
    of_log = [one.rows for one in plan.rows.values() if _is_of_log(one.published, users)]
    columns = [column for rows in of_log for column in rows.columns if pa.types.is_string(column.type)]
    return replace(users, of_lists=others.difference(*(column.to_pylist() for column in columns)))


def _is_of_log(published: PublishedPartition, users: UsersToErase) -> bool:
    return published.kind not in OF_LISTS and published.partition.table != users.by_integer


def _rank(published: PublishedPartition) -> tuple[int, str]:
    if published.kind in _FIRST:
        return _FIRST.index(published.kind), published.path
    return len(_FIRST) + (published.kind in _LAST), published.path


def _find(published: PublishedPartition, rule: TableRule) -> UserRows | None:
    files, parts = {}, []
    paths = data_files(published.partition, published.manifest)
    for entry, path in zip(published.manifest.files, paths, strict=True):
        table = read_file(path, rule.columns)
        matched = rule.matches(table)
        if matched.any():
            files[entry.path] = int(matched.sum())
            parts.append(table.filter(pa.array(matched)).select(list(rule.columns)))
    return UserRows(published, rule, files, pa.concat_tables(parts)) if parts else None


def _is_computed_again(
    published: PublishedPartition,
    rows: Mapping[str, UserRows],
    removed: Mapping[tuple[str, str], int],
    unknown: frozenset[tuple[str, str]],
) -> bool:
    """Returns whether the next run must compute a partition again.

    This is true for partitions of typed or prepared rows that contain rows of the users. It is also true for
    the value counts and profiles of days that have rows of the users, or may have some (`_unknown_days`).
    Even without an id of a user, their counts include the users' rows, but a fit must count exactly the rows
    that it reads. When the next run computes the value counts of a day, it also computes the day's quarantine
    again.
    """
    day = _day_of(published)
    if published.kind == PROFILES:
        return day in removed or day in unknown
    if published.kind == VALUE_COUNTS and (day in removed or day in unknown or day in _prepared_days(rows)):
        return True
    return published.kind in COMPUTED_AGAIN and published.path in rows


def _day_of(published: PublishedPartition) -> tuple[str, str]:
    """Returns the day of a partition, and the digest of the raw log from which it was computed."""
    return published.partition.dt, published.manifest.inputs.get("raw", "")


def _unknown_days(partitions: Sequence[PublishedPartition]) -> frozenset[tuple[str, str]]:
    """Returns (day, digest of the raw log) for each scanned day that has neither feature nor prepared rows.

    No table says how many rows of such a day belong to the users. A day is in this state if, for example,
    only check_quality has read it.
    """
    scanned = {_day_of(one) for one in partitions if one.kind in (VALUE_COUNTS, PROFILES)}
    with_rows = {_day_of(one) for one in partitions if one.kind in (FEATURES, PREPARED)}
    return frozenset(day for day in scanned - with_rows if day[1])


def _prepared_days(rows: Mapping[str, UserRows]) -> set[tuple[str, str]]:
    """Returns (day, digest of the raw log) for each day with prepared rows of the users."""
    return {_day_of(one.published) for one in rows.values() if one.published.kind == PREPARED}


def _logged_rows(matched: UserRows, config: Config) -> int:
    """Returns how many of the users' rows in a partition come from the log.

    The other rows are negatives, which a job has drawn at random.
    """
    of_log_only = "negatives" not in matched.published.manifest.inputs
    if matched.published.kind != FEATURES or of_log_only or config.negatives is None:
        return matched.removed
    return sum(not config.negatives.is_drawn(row_id) for row_id in matched.rows[ROW_ID].to_pylist())


def _removed_by_day(rows: Mapping[str, UserRows], logged: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Returns, by (day, digest of the raw log), how many feature rows of the users are not negatives."""
    removed: dict[tuple[str, str], int] = {}
    for path, matched in rows.items():
        if matched.published.kind == FEATURES:
            key = _day_of(matched.published)
            removed[key] = max(removed.get(key, 0), logged[path])
    return removed


def _removed_clicks(rows: Mapping[str, UserRows]) -> dict[tuple[str, str, str | None], int]:
    """Returns the number of the users' clicks in the feature files of each (workflow version, day, split)."""
    clicks: dict[tuple[str, str, str | None], int] = defaultdict(int)
    for matched in rows.values():
        published = matched.published
        if published.kind != FEATURES:
            continue
        first = 0
        for entry in published.manifest.files:
            count = matched.files.get(entry.path, 0)
            labels = matched.rows[LABEL].slice(first, count)
            first += count
            clicks[published.version, published.partition.dt, entry.split] += int(pc.sum(labels).as_py() or 0)
    return dict(clicks)


def _draft(
    published: PublishedPartition,
    matched: UserRows | None,
    users: UsersToErase,
    logged: Mapping[str, int],
    removed: Mapping[tuple[str, str], int],
    recounted: set[str],
    done: frozenset[str],
) -> Manifest:
    """Returns the manifest of a partition after the users' rows are removed.

    The digests of the partition's inputs are still the old ones. `settle` replaces them later.

    Args:
        published: the published partition, with its old manifest.
        matched: the rows of the users in the partition; None if there are none.
        users: the users to erase.
        logged: for each partition with rows of the users, maps its path to the number of these rows that come
            from the log.
        removed: the result of `_removed_by_day`.
        recounted: the days whose value counts the next run computes again.
        done: the digests of partitions that an earlier attempt has already published without the users' rows.
            The numbers in their manifests already exclude the users, so they must not be changed again.
    """
    manifest = published.manifest
    if published.kind in _WITH_VALUES:
        manifest = replace(manifest, facts=without_ids(manifest.facts, users.ids, users.column))
        days = {piece["dt"] for piece in manifest.facts.get("pieces", ())}
        if not days.isdisjoint(recounted):  # The next run for this date computes the data report again.
            manifest = replace(manifest, inputs={})
    if matched is not None and not matched.rule.keeps_rows:
        manifest = _with_fewer_rows(manifest, matched, logged[published.path])
    if published.kind == QUARANTINE and manifest.digest not in done:
        unused = removed.get(_day_of(published), 0)
        manifest = replace(manifest, dropped=_dropped(manifest.dropped, matched, unused))
        misdated = Misdated.from_facts(manifest.facts)
        if unused and misdated and misdated.rows:  # How many misdated rows are removed is unknown.
            facts = {name: value for name, value in manifest.facts.items() if name != MISDATED}
            manifest = replace(manifest, facts=facts)
    return manifest


def _with_fewer_rows(manifest: Manifest, matched: UserRows, logged: int) -> Manifest:
    files = tuple(
        replace(entry, rows=entry.rows - lost)
        for entry in manifest.files
        if entry.rows > (lost := matched.files.get(entry.path, 0))  # a file without rows is not published
    )
    kind = matched.published.kind
    if kind == COPIES:
        facts = {name: value for name, value in manifest.facts.items() if name != CONTENT}
        manifest = replace(manifest, facts=facts)
    if kind == FEATURES:  # rows_in is the number of rows of the raw log, which does not change
        dropped = {**manifest.dropped, ERASED: manifest.dropped.get(ERASED, 0) + logged}
        return replace(manifest, files=files, dropped=dict(sorted(dropped.items())))
    rows_in = manifest.rows_in if kind == QUARANTINE else max(0, manifest.rows_in - matched.removed)
    return replace(manifest, files=files, rows_in=rows_in)


def _dropped(dropped: Mapping[str, int], matched: UserRows | None, unused: int) -> dict[str, int]:
    """Returns the number of rejected rows by reason.

    Both the quarantined and the accepted rows of the users are counted under the reason ERASED.
    """
    counts = Counter(dropped)
    reasons = matched.rows["reason"].to_pylist() if matched else []
    counts.subtract(reasons)
    counts[ERASED] += len(reasons) + unused
    return {reason: count for reason, count in sorted(counts.items()) if count}


def _with_lists(
    published: PublishedPartition,
    manifest: Manifest,
    rows: Mapping[str, UserRows],
    partitions: Sequence[PublishedPartition],
    done: frozenset[str],
) -> Manifest:
    """Returns `manifest`. If it describes recommendations, its numbers of users exclude the erased users."""
    if published.kind != _RECOMMENDATIONS or published.manifest.digest in done:
        return manifest
    version = manifest.facts.get("workflow_version", "")
    same_run = [
        rows[one.path].rows[USER_KEY].to_pylist()
        for one in partitions
        if (one.kind, one.version, one.partition.dt) == (_USERS, version, published.partition.dt)
        and one.path in rows
    ]
    matched = rows.get(published.path)
    lists = matched.rows if matched else pa.table({"user_id": pa.array([], pa.string())})
    known = frozenset(user for users in same_run for user in users)
    return lists_without(manifest, lists, known | frozenset(lists["user_id"].to_pylist()))


# Erasing users changes these values of `Manifest.facts`: the numbers of users, and the most frequent ids.

_HIDDEN = "(erased)"


def without_ids(facts: Mapping[str, Any], ids: frozenset[str], column: str) -> dict[str, Any]:
    """Returns `Manifest.facts` of a profile or data report, with a placeholder in place of the ids of users.

    Args:
        facts: `Manifest.facts`. The key `columns` has the figures of each column.
        ids: the ids of the users.
        column: the raw column with the ids of users.
    """
    columns = facts.get("columns")
    if isinstance(columns, Mapping) and column in columns:
        return {**facts, "columns": {**columns, column: _hidden(columns[column], ids)}}
    if isinstance(columns, list):
        hidden = [_hidden(entry, ids) if _is_of(entry, column) else entry for entry in columns]
        return {**facts, "columns": hidden}
    return dict(facts)


def _is_of(entry: Any, column: str) -> bool:
    return isinstance(entry, Mapping) and entry.get("name") == column


def _hidden(value: Any, ids: frozenset[str]) -> Any:
    """Returns a JSON value in which a placeholder replaces each string that is one of the ids."""
    if isinstance(value, Mapping):
        return {key: _hidden(inner, ids) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(inner, ids) for inner in value]
    return _HIDDEN if isinstance(value, str) and value in ids else value


def lists_without(manifest: Manifest, with_list: pa.Table, users: frozenset[str]) -> Manifest:
    """Returns the manifest of recommendation lists with numbers of users that exclude the erased users.

    Args:
        manifest: the manifest of a date of `recommendations`.
        with_list: the removed rows, with the column user_id.
        users: the erased users who were among the users of the run that made the lists. If a user has no row
            in `with_list`, the run made no list for this user.
    """
    facts = dict(manifest.facts)
    entries = pc.value_counts(with_list[USER_ID])
    short = sum(entry["counts"].as_py() < facts.get("k", 0) for entry in entries)
    without = users - set(with_list[USER_ID].to_pylist())
    for name, lost in (
        ("users", len(entries) + len(without)),
        ("users_without", len(without)),
        ("users_with_fewer", short + len(without)),
    ):
        if name in facts:
            facts[name] = int(facts[name]) - lost
    return replace(manifest, facts=facts)


# The code below keeps digests consistent. A partition whose rows are removed gets a new digest. Other
# partitions still refer to its old digest.
#
# The digest of a partition depends on its number of rows and on its inputs. An input is the digest of another
# partition, of several combined partitions, or of a dataset. After an erasure, all inputs must be the new
# digests. A partition with an old digest among its inputs is computed again by the next run. Training refuses
# a feature partition with an old digest.

DATASETS, LAST_CLICKS = "datasets", "last_clicks"
_MAX_PASSES = 50  # longer than any chain of partitions in which each is an input of the next
Clicks = Mapping[tuple[str, str, str | None], int]


class DigestChanges:
    """Maps old digests of partitions to the new ones, including those that a killed erasure has recorded."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.changes = dict(known)

    def of(self, digest: str) -> str:
        """Returns the digest that replaces `digest`; `digest` itself if it has not changed."""
        for _ in range(_MAX_PASSES):
            if self.changes.get(digest, digest) == digest:
                break
            digest = self.changes[digest]
        return digest

    def add(self, old: str, new: str) -> None:
        """Records that the digest `new` replaces the digest `old`."""
        if old != new:
            self.changes[old] = new


def settle(
    partitions: Sequence[PublishedPartition],
    drafts: Mapping[str, Manifest],
    changes: DigestChanges,
    clicks: Clicks,
    config: Config,
) -> dict[str, Manifest]:
    """Returns the manifests, in which the new digests of other partitions replace the old ones.

    Args:
        partitions: all partitions, with their published manifests.
        drafts: maps the path of each partition to its manifest without the users. In this manifest, the
            digests of other partitions are still the old ones.
        changes: the changed digests. The function adds further changes.
        clicks: maps (workflow version, day, split of the files) to the number of removed rows with label 1.
        config: the configuration. It sets how many earlier days a history covers.
    """
    settled = dict(drafts)
    for _ in range(_MAX_PASSES):
        before = dict(changes.changes)
        for published in partitions:
            draft = _with_new_inputs(drafts[published.path], changes)
            if published.kind == DATASETS:
                draft = _with_members(draft, changes, clicks)
            settled[published.path] = draft
            changes.add(published.manifest.digest, draft.digest)
        _add_windows(partitions, changes, config)
        if changes.changes == before:
            break
    return settled


def _with_new_inputs(manifest: Manifest, changes: DigestChanges) -> Manifest:
    return replace(manifest, inputs={name: changes.of(digest) for name, digest in manifest.inputs.items()})


def _with_members(manifest: Manifest, changes: DigestChanges, clicks: Clicks) -> Manifest:
    """Returns a dataset's manifest with the new digests and numbers of clicks of its feature partitions."""
    facts = dict(manifest.facts)
    version = facts["workflow_version"]
    splits = {split: [Member(**member) for member in members] for split, members in facts["splits"].items()}

    def changed(member: Member) -> Member:
        digest = changes.of(member.digest)
        if digest == member.digest:
            return member
        lost = sum(
            count
            for (of_version, dt, label), count in clicks.items()
            if (of_version, dt) == (version, member.dt) and member.label in (None, label)
        )
        return replace(member, digest=digest, clicks=None if member.clicks is None else member.clicks - lost)

    new = {split: [changed(member) for member in members] for split, members in splits.items()}
    for unique in (False, True):  # publish_latest combines distinct digests
        changes.add(_combined(splits, unique), _combined(new, unique))
    changes.add(_dataset_digest(manifest, splits), _dataset_digest(manifest, new))
    facts["splits"] = {split: [dict(vars(member)) for member in members] for split, members in new.items()}
    inputs = {name: changes.of(digest) for name, digest in manifest.inputs.items()}
    return replace(manifest, inputs=inputs, facts=facts)


def _combined(splits: Mapping[str, Sequence[Member]], unique: bool) -> str:
    digests = [member.digest for members in splits.values() for member in members]
    return combined_digest(set(digests) if unique else digests)


def _dataset_digest(manifest: Manifest, splits: Mapping[str, Sequence[Member]]) -> str:
    members = {split: tuple(of_split) for split, of_split in splits.items()}
    return Dataset(manifest.partition, manifest.facts["workflow_version"], members, "").digest


def _add_windows(partitions: Sequence[PublishedPartition], changes: DigestChanges, config: Config) -> None:
    """Adds the changed digests of the clicks from which histories are computed to `changes`.

    For each day, such a digest combines the digests of the partitions of `last_clicks` before the day.
    """
    if config.history is None:
        return
    old = {one.partition.dt: one.manifest.digest for one in partitions if one.kind == LAST_CLICKS}
    days = {one.partition.dt for one in partitions if one.kind in ("features", DATASETS)} | old.keys()
    after = {(date.fromisoformat(day) + timedelta(days=1)).isoformat() for day in days}
    for day in days | after:
        first = (date.fromisoformat(day) - timedelta(days=config.history.days or 0)).isoformat()
        window = [digest for dt, digest in old.items() if first <= dt < day]
        before, now = combined_digest(window), combined_digest(map(changes.of, window))
        changes.add(before, now)
        for known in (list(SPLITS), list(SPLITS[:-1]), list(SPLITS[:1])):
            latest = [digest_of([preparation(config), known, digest]) for digest in (before, now)]
            changes.add(*latest)
