"""Which rows of a table belong to a user, and what remains of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.raw_types import format_settings
from conf.types import Config
from etl.erasure.lake_partitions import PREPARED, TYPED, Published
from etl.erasure.workflow_tables import UserTables, key_has_user, tombstones
from etl.ops.keyed import KEY
from etl.ops.tables import RARE, VOCABULARY
from etl.raw.erased_rows import has_erased_field, json_texts
from etl.raw.table_copies import COPIES, USER_COLUMN
from storage.erased_users import ErasedUsers
from storage.feature_spec import LABEL, ROW_ID, USER_KEY

USER_ID = "user_id"
FEATURES, SCORES, QUARANTINE, VALUE_COUNTS, WORKFLOW, PROFILES = (
    "features",
    "scores",
    "quarantine",
    "value_counts",
    "workflow",
    "profiles",
)
# Tables that the next run computes again from the raw log, without erased users. Their counts of other
# columns include the users' rows, so it is not enough to remove rows.
COMPUTED_AGAIN = (TYPED, PREPARED, VALUE_COUNTS)
_FEATURES_DT = "features_dt"
_COUNTED = {"column", "value"}
Matches = Callable[[pa.Table], np.ndarray]


@dataclass(frozen=True)
class Users:
    """The users to erase.

    Attributes:
        ids: their ids, as texts.
        digests: the same users by their salted digests.
        column: the raw column with the id of the user.
        separator: the separator of the log's fields.
        in_json: whether the quarantine stores rows as JSON, as it does for Parquet logs.
    """

    ids: frozenset[str]
    digests: ErasedUsers
    column: str
    separator: str
    in_json: bool

    @classmethod
    def of(cls, ids: frozenset[str], salt: str, digest: Callable[[str], str], config: Config) -> Users:
        """Returns the users of a configuration, whose section `keys` must be set.

        Args:
            ids: the ids.
            salt: the salt of the lake.
            digest: returns the salted digest of an id.
            config: the configuration.
        """
        digests = ErasedUsers(salt, frozenset(map(digest, ids)))
        column, log = config.keys.user if config.keys else "", config.log
        return cls(ids, digests, column, log.field_separator, not format_settings(log.format).is_separated)

    def are_in(self, values: pa.ChunkedArray) -> np.ndarray:
        """Returns which of n ids (string or int64, some of them null) are those of the users: (n,) bool."""
        texts = values if pa.types.is_string(values.type) else values.cast(pa.string())
        matched = pc.is_in(texts, value_set=pa.array(sorted(self.ids), pa.string()))
        return np.asarray(matched.combine_chunks().to_numpy(zero_copy_only=False), bool)


@dataclass(frozen=True)
class TableRule:
    """Finds the rows of users in a table.

    Attributes:
        columns: the columns that decide. They are also collected for the found rows.
        matches: returns which of the n rows of a table with these columns are found: (n,) bool.
        keeps_rows: whether found rows stay, with a tombstone as their `value` (vocabularies).
    """

    columns: tuple[str, ...]
    matches: Matches
    keeps_rows: bool = False

    def applied(self, rows: pa.Table) -> pa.Table:
        """Returns what remains of some rows of the table, with all their columns, in their order."""
        matched = self.matches(rows)
        if not matched.any():
            return rows
        if not self.keeps_rows:
            return rows.filter(pa.array(~matched))
        values = pc.if_else(pa.array(matched), tombstones(rows["id"]), rows["value"].combine_chunks())
        return rows.set_column(rows.column_names.index("value"), rows.schema.field("value"), values)


def rule_of(
    published: Published,
    users: Users,
    workflows: Mapping[str, UserTables],
    row_ids: Mapping[str, np.ndarray],
) -> TableRule | None:
    """Returns the rule of a table; None if it contains no ids of users.

    Args:
        published: a partition of the table.
        users: the users.
        workflows: maps each workflow version to its tables with ids of users.
        row_ids: maps each day to the row_ids of the users' rows in the feature partitions, for `scores`.
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
        return TableRule((user,), partial(_has_stored_id, users, user)) if user in types else None
    if types.keys() >= _COUNTED:
        return TableRule(("column", "value"), partial(_is_counted, users, frozenset({users.column})))
    key = next((name for name in (USER_KEY, USER_ID) if types.get(name) == "string"), None)
    if key is None:
        return None
    columns = (key, ROW_ID, LABEL) if published.kind == FEATURES else (key,)
    return TableRule(columns, partial(_has_key, users, key))


def _workflow_rule(table: str, users: Users, tables: UserTables) -> TableRule | None:
    if table in (VOCABULARY, RARE):
        matches = partial(_is_counted, users, tables.vocabularies)
        is_vocabulary = table == VOCABULARY
        columns = ("column", "value", "id") if is_vocabulary else ("column", "value")
        return TableRule(columns, matches, keeps_rows=is_vocabulary) if tables.vocabularies else None
    if table in tables.keyed:
        return TableRule((KEY,), partial(_has_part, users, tables.keyed[table]))
    return None


def _has_key(users: Users, name: str, rows: pa.Table) -> np.ndarray:
    return users.are_in(rows[name])


def _has_stored_id(users: Users, name: str, rows: pa.Table) -> np.ndarray:
    """Does what `_has_key` does, for a column of any type that readers accept as ids."""
    values = rows[name]
    if pa.types.is_floating(values.type):
        values = values.cast(pa.int64(), safe=False)
    elif pa.types.is_decimal(values.type):
        values = values.cast(pa.decimal128(38, 0), safe=False)
    return users.are_in(values.cast(pa.string()))


def _has_row_id(row_ids: Mapping[str, np.ndarray], rows: pa.Table) -> np.ndarray:
    matched = np.zeros(len(rows), bool)
    for day, ids in row_ids.items():
        of_day = pc.fill_null(pc.equal(rows[_FEATURES_DT], day), False).to_numpy()
        matched |= of_day & np.isin(rows[ROW_ID].to_numpy(), ids)
    return matched


def _has_field(users: Users, rows: pa.Table) -> np.ndarray:
    lines = [line or "" for line in rows["line"].to_pylist()]
    if users.in_json:
        return np.array([not users.ids.isdisjoint(json_texts(line)) for line in lines], bool)
    return np.array([has_erased_field(line, users.separator, users.digests) for line in lines], bool)


def _is_counted(users: Users, columns: frozenset[str], rows: pa.Table) -> np.ndarray:
    of_columns = pc.is_in(rows["column"], value_set=pa.array(sorted(columns), pa.string()))
    return np.asarray(of_columns.to_numpy(), bool) & users.are_in(rows["value"])


def _has_part(users: Users, positions: frozenset[int], rows: pa.Table) -> np.ndarray:
    return np.array([key_has_user(key, users.ids, positions) for key in rows[KEY].to_pylist()], bool)
