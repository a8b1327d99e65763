"""Lists a lake's published partitions. Finds rows of users in them, and the rows that an erasure keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.raw_types import format_settings
from conf.types import Config
from etl.ops.keyed import KEY
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from etl.raw.erased_users import ErasedUsers, LineFields, compares_users_as_integers, has_erased_field
from etl.raw.files import COPIES, USER_COLUMN, copies_of, raw_path
from etl.raw.text_values import SEPARATOR, integer_text
from etl.workflow.fitted_workflow import FILE_NAME, read_version
from storage import file_io, format_versions
from storage.feature_spec import LABEL, ROW_ID, USER_KEY
from storage.manifest import MANIFEST_NAME, Manifest, data_files, load_manifest
from storage.paths import DATA, LakePaths, Partition
from storage.read_parquet import read_file

TYPED, PREPARED = "typed", "prepared"
_RAW = "raw"


@dataclass(frozen=True)
class PublishedPartition:
    """A published partition.

    Attributes:
        partition: the table, the name and the path of the partition.
        manifest: lists the files of the partition.
    """

    partition: Partition
    manifest: Manifest

    @property
    def path(self) -> str:
        """Returns the folder of the partition, which identifies the partition."""
        return self.partition.path

    @property
    def kind(self) -> str:
        """Returns the first part of the name of the table, such as `features`."""
        return self.partition.table.split("/")[0]

    @property
    def version(self) -> str:
        """Returns the second part of the name of the table, such as a workflow version.

        The result is empty if there is no second part.
        """
        return self.partition.table.partition("/")[2].split("/")[0]


def published_partitions(lake: LakePaths, config: Config) -> list[PublishedPartition]:
    """Returns all published partitions except raw logs, ordered by path.

    Raises:
        DataError: a manifest is damaged, or a newer release wrote it.
    """
    return [one for one in all_partitions(lake) if one.kind != _RAW and not _is_log(one, config)]


def _is_log(one: PublishedPartition, config: Config) -> bool:
    """Returns whether a partition is a day of the raw log, which may be anywhere in the lake."""
    try:
        date.fromisoformat(one.partition.dt)
    except ValueError:  # the name of the partition is not a day
        return False
    return one.path == raw_path(config, config.log, one.partition.dt).rpartition("/")[0]


def all_partitions(lake: LakePaths) -> list[PublishedPartition]:
    """Returns all published partitions.

    The result includes days of raw logs in the lake, if the folder of the day has a manifest.

    Raises:
        DataError: a manifest is damaged, or a newer release wrote it.
    """
    root = lake.root.rstrip("/")
    _, inner = file_io.filesystem(root)
    partitions = []
    for info in file_io.list_files(root, recursive=True):
        path = info.path.removeprefix(f"{inner}/")
        table, _, name = path.removesuffix(f"/{MANIFEST_NAME}").rpartition("/")
        if info.base_name != MANIFEST_NAME or path.split("/")[0] == DATA or not table:
            continue
        depth = table.count("/") + 2
        dt = name.removeprefix("dt=")
        folder = f"{root}/{table}/{name}"
        internal = table.split("/")[0] in (TYPED, PREPARED, COPIES)
        partition = Partition(table, dt, folder, depth, lake.recorder, internal=internal)
        partitions.append(PublishedPartition(partition, read_unrecorded(partition)))
    return partitions


def read_unrecorded(partition: Partition) -> Manifest:
    """Reads a manifest without recording it as an input of the run.

    Raises:
        DataError: the manifest is damaged, or a newer release wrote it.
    """
    return load_manifest(partition)


# The code below finds the rows of a table that belong to a user, and the rows that remain.

USER_ID = "user_id"
FEATURES, SCORES, QUARANTINE, VALUE_COUNTS, WORKFLOW, PROFILES = (
    "features",
    "scores",
    "quarantine",
    "value_counts",
    "workflow",
    "profiles",
)

# The next run computes these tables again from the raw log, without the erased users. Removing the users' ids
# would not be enough, because the value counts of all other columns also include the users' rows.
COMPUTED_AGAIN = (TYPED, PREPARED, VALUE_COUNTS)
# These tables of the lake also contain users who are in the raw table `users`, but have no row in the log.
OF_LISTS = ("users", "candidates", "recommendations")
_FEATURES_DT = "features_dt"
_COUNTED = {"column", "value"}
Matches = Callable[[pa.Table], np.ndarray]


@dataclass(frozen=True)
class UsersToErase:
    """The users to erase.

    Attributes:
        ids: the ids of the users, as strings.
        digests: the salted digests of the same ids.
        column: the raw column with the id of the user.
        fields: finds ids in rejected lines of the log.
        in_json: whether the quarantine stores rows as JSON, as it does for Parquet logs.
        by_integer: set if ids of the log and of the raw table `users` are compared as integers. Then it is
            the name of the table in the lake into which Spark copies the rows of `users`. Otherwise empty.
        of_lists: other ids under which lists and features of the same users are stored
            (plan.with_ids_of_lists).
    """

    ids: frozenset[str]
    digests: ErasedUsers
    column: str
    fields: LineFields
    in_json: bool
    by_integer: str = ""
    of_lists: frozenset[str] = frozenset()

    @classmethod
    def of(cls, ids: frozenset[str], salt: str, digest: Callable[[str], str], config: Config) -> UsersToErase:
        """Returns the users to erase. The section `keys` of the configuration must be set.

        Args:
            ids: the ids of the users, as strings.
            salt: the salt of the lake.
            digest: function that returns the salted digest of an id.
            config: the configuration, with the names of the raw log's columns.
        """
        digests = ErasedUsers(salt, frozenset(map(digest, ids)))
        column, log = config.keys.user if config.keys else "", config.log
        table = config.users
        by_integer = table is not None and compares_users_as_integers(config, table)
        return cls(
            ids,
            digests,
            column,
            LineFields.of(log, config.keys),
            not format_settings(log.format).is_separated,
            copies_of(config, table).name if table is not None and by_integer else "",
        )

    def are_in(self, values: pa.ChunkedArray) -> np.ndarray:
        """Returns which of n ids (string or int64, with nulls) belong to users to erase: (n,) bool."""
        texts = values if pa.types.is_string(values.type) else values.cast(pa.string())
        matched = pc.is_in(texts, value_set=pa.array(sorted(self.ids), pa.string()))
        return np.asarray(matched.combine_chunks().to_numpy(zero_copy_only=False), bool)

    @property
    def integers(self) -> frozenset[str]:
        """Returns those ids of the users that are integers, without leading zeros: `7` for `00007`."""
        return frozenset(number for user in self.ids if (number := integer_text(user)) is not None)

    def have_integers(self, texts: pa.ChunkedArray) -> np.ndarray:
        """Returns which of n strings are the same integer as the id of one of the users: (n,) bool."""
        known = self.integers
        values = texts.to_pylist()
        return np.array([text is not None and integer_text(text) in known for text in values], bool)


@dataclass(frozen=True)
class TableRule:
    """A rule that finds the rows of users in a table.

    Attributes:
        columns: the columns that `matches` reads. The plan of the erasure contains the users' rows with these
            columns.
        matches: function that takes n rows with these columns, and returns which rows belong to users: (n,)
            bool.
        keeps_rows: whether the users' rows stay in the table, as in vocabularies. If so, a string that is not
            a valid id (`tombstones`) replaces the user's id in the column `value`.
    """

    columns: tuple[str, ...]
    matches: Matches
    keeps_rows: bool = False

    def applied(self, rows: pa.Table) -> pa.Table:
        """Returns the rows that remain after the erasure, with all columns and in the same order."""
        matched = self.matches(rows)
        if not matched.any():
            return rows
        if not self.keeps_rows:
            return rows.filter(pa.array(~matched))
        values = pc.if_else(pa.array(matched), tombstones(rows["id"]), rows["value"].combine_chunks())
        return rows.set_column(rows.column_names.index("value"), rows.schema.field("value"), values)


def rule_of(
    published: PublishedPartition,
    users: UsersToErase,
    workflows: Mapping[str, UserTables],
    row_ids: Mapping[str, np.ndarray],
) -> TableRule | None:
    """Returns the rule that finds the rows of users in a table; None if the table contains no ids of users.

    Args:
        published: a partition of the table.
        users: the users to erase.
        workflows: maps each workflow version to its tables with ids of users.
        row_ids: maps each day to the row_ids of the users' rows in the feature partitions. The rule for the
            table `scores` needs them, because this table has no ids of users.
    """
    types = dict(published.manifest.schema)
    if published.kind == WORKFLOW:
        return _workflow_rule(published.partition.dt, users, workflows.get(published.version, UserTables()))
    if published.kind == SCORES:
        return TableRule((_FEATURES_DT, ROW_ID), partial(_has_row_id, row_ids))
    if published.kind == QUARANTINE:
        return TableRule(("line", "reason"), partial(_has_field, users))
    if published.kind == TYPED:
        return TableRule((users.column,), partial(_has_key, users, users.column))
    if published.kind == COPIES:
        user = published.manifest.facts.get(USER_COLUMN)
        as_integers = published.partition.table == users.by_integer
        return (
            TableRule((user,), partial(_has_stored_id, users, user, as_integers)) if user in types else None
        )
    if types.keys() >= _COUNTED:
        return TableRule(("column", "value"), partial(_is_counted, users, frozenset({users.column})))
    key = next((name for name in (USER_KEY, USER_ID) if types.get(name) == "string"), None)
    if key is None:
        return None
    if published.kind in OF_LISTS:
        users = replace(users, ids=users.ids | users.of_lists)
    columns = (key, ROW_ID, LABEL) if published.kind == FEATURES else (key,)
    return TableRule(columns, partial(_has_key, users, key))


def _workflow_rule(table: str, users: UsersToErase, tables: UserTables) -> TableRule | None:
    if table in (VOCABULARY, RARE):
        matches = partial(_is_counted, users, tables.vocabularies)
        is_vocabulary = table == VOCABULARY
        columns = ("column", "value", "id") if is_vocabulary else ("column", "value")
        return TableRule(columns, matches, keeps_rows=is_vocabulary) if tables.vocabularies else None
    if table in tables.keyed:
        return TableRule((KEY,), partial(_has_part, users, tables.keyed[table]))
    return None


def _has_key(users: UsersToErase, name: str, rows: pa.Table) -> np.ndarray:
    return users.are_in(rows[name])


def _has_stored_id(users: UsersToErase, name: str, as_integers: bool, rows: pa.Table) -> np.ndarray:
    """Returns, for each row, whether its column `name` is the id of one of the users: (n,) bool.

    The column may have any type that readers accept for ids. If `as_integers` is true, ids are also compared
    as integers: 7 is then the id `00007`.
    """
    values = rows[name]
    if pa.types.is_floating(values.type):
        values = values.cast(pa.int64(), safe=False)
    elif pa.types.is_decimal(values.type):
        values = values.cast(pa.decimal128(38, 0), safe=False)
    texts = values.cast(pa.string())
    return users.are_in(texts) | users.have_integers(texts) if as_integers else users.are_in(texts)


def _has_row_id(row_ids: Mapping[str, np.ndarray], rows: pa.Table) -> np.ndarray:
    matched = np.zeros(len(rows), bool)
    for day, ids in row_ids.items():
        of_day = pc.fill_null(pc.equal(rows[_FEATURES_DT], day), False).to_numpy()
        matched |= of_day & np.isin(rows[ROW_ID].to_numpy(), ids)
    return matched


def _has_field(users: UsersToErase, rows: pa.Table) -> np.ndarray:
    lines = [line or "" for line in rows["line"].to_pylist()]
    if users.in_json:
        return np.array([not users.ids.isdisjoint(users.fields.ids_of_json(line)) for line in lines], bool)
    return np.array([has_erased_field(line, users.fields, users.digests) for line in lines], bool)


def _is_counted(users: UsersToErase, columns: frozenset[str], rows: pa.Table) -> np.ndarray:
    of_columns = pc.is_in(rows["column"], value_set=pa.array(sorted(columns), pa.string()))
    return np.asarray(of_columns.to_numpy(), bool) & users.are_in(rows["value"])


def _has_part(users: UsersToErase, positions: frozenset[int], rows: pa.Table) -> np.ndarray:
    return np.array([key_has_user(key, users.ids, positions) for key in rows[KEY].to_pylist()], bool)


# The code below finds the tables and vocabularies of a workflow version that contain the ids of users.
#
# A vocabulary keeps the row of an erased value, so no id of the vocabulary changes. Only the value in this
# row is replaced, by a string with a control character. etl/raw/row_rules.py rejects rows whose id is such a
# string, so no user of a log can have it as an id. If an erased user returns with the same id, this id
# is unknown until the next extension of the workflow gives it a new vocabulary id.


@dataclass(frozen=True)
class UserTables:
    """The tables of a workflow version that contain ids of users.

    Attributes:
        vocabularies: names of the vocabularies whose values are ids of users.
        keyed: the tables whose keys contain ids of users. A key has one or more parts. Maps the name of each
            table to the positions of the ids among these parts.
        features: names of the features whose values are ids of these vocabularies.
    """

    vocabularies: frozenset[str] = frozenset()
    keyed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    features: tuple[str, ...] = ()


def user_tables(chains: list[dict[str, Any]], column: str) -> UserTables:
    """Returns the tables of a workflow version that contain ids of users.

    Args:
        chains: the fitted chains of a workflow version, as JSON.
        column: the raw column with the user's id. If the operator `rename` gave this column another name, the
            result includes the tables of the renamed column. It includes no tables of columns that other
            operators computed.
    """
    vocabularies: set[str] = set()
    keyed: dict[str, set[int]] = defaultdict(set)
    features: list[str] = []
    for chain in chains:
        names = {column}
        for step in chain["steps"]:
            positions = [place for place, name in enumerate(step["inputs"]) if name in names]
            if not positions:
                continue
            state = step["state"]
            if step["op"] == "rename":
                names |= {step["outputs"][place] for place in positions}
            elif "vocabulary" in state:
                vocabularies.add(state["vocabulary"])
                features += chain["outputs"]
            elif state.get("table"):
                keyed[state["table"]] |= set(positions)
    tables = {name: frozenset(positions) for name, positions in keyed.items()}
    return UserTables(frozenset(vocabularies), tables, tuple(features))


def key_has_user(key: str, users: frozenset[str], positions: frozenset[int]) -> bool:
    """Returns whether a key contains the id of a user. A key is one value, or several joined values."""
    parts = key.split(SEPARATOR)
    if len(parts) == 1:
        return key in users
    return any(place < len(parts) and parts[place] in users for place in positions)


def tombstones(ids: pa.ChunkedArray) -> pa.Array:
    """Returns the strings that replace the erased values of n vocabulary ids (int32): (n,) string."""
    texts = ids.combine_chunks().cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(SEPARATOR + "erased"), texts, ":")


def refresh_workflow(lake: LakePaths, version: str, tables: UserTables) -> None:
    """Updates the numbers of rows in workflow.json after rows of a version's tables have been removed.

    The file has the number of rows of each table. For each vocabulary of user ids, it also has the number of
    rare values, and the number of rows in which they occur.
    """
    stored = read_version(lake, version)
    changed = {**stored, "tables": dict(stored["tables"]), "vocabularies": dict(stored["vocabularies"])}
    for name in stored["tables"]:
        changed["tables"][name] = read_unrecorded(workflow_table(lake, version, name)).rows
    if RARE in stored["tables"]:
        partition = workflow_table(lake, version, RARE)
        files = data_files(partition, read_unrecorded(partition))
        rare = [read_file(path, ["column", "count"]) for path in files]
        for name in tables.vocabularies & set(stored["vocabularies"]):
            counts = [rows.filter(pc.equal(rows["column"], name))["count"] for rows in rare]
            changed["vocabularies"][name] = {
                **stored["vocabularies"][name],
                "rare_values": sum(len(values) for values in counts),
                "rare_occurrences": sum(pc.sum(values).as_py() or 0 for values in counts),
            }
    if changed != stored:
        path = f"{lake.workflow(version)}/{FILE_NAME}"
        file_io.replace_json(path, format_versions.WORKFLOW.stamp(changed))
