"""Which tables and vocabularies of a workflow version contain the ids of users.

A vocabulary keeps the id of an erased value, so no other id changes. The value is replaced by a text with a
control character. No log has such an id (etl/raw/key_rule.py), so no value is ever looked up as the erased
one: a user who comes back with the same id is unknown until the next extension, and then gets a new id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.erasure.lake_partitions import read_unrecorded
from etl.ops.tables import RARE, workflow_table
from etl.raw.value_text import SEPARATOR
from etl.workflow.local_workflow import FILE_NAME, read_version
from storage import file_io, format_versions
from storage.manifest import data_files
from storage.parquet_files import read_file
from storage.paths import Lake


@dataclass(frozen=True)
class UserTables:
    """The tables of a workflow version that contain ids of users.

    Attributes:
        vocabularies: names of the vocabularies that count the column of the user's id.
        keyed: maps each table with a column `key` to the positions of the user's id among the parts of a key.
        features: names of the features whose values are ids of these vocabularies.
    """

    vocabularies: frozenset[str] = frozenset()
    keyed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    features: tuple[str, ...] = ()


def user_tables(chains: list[dict[str, Any]], column: str) -> UserTables:
    """Returns the tables with ids of users.

    Args:
        chains: the fitted chains of a workflow version, as JSON.
        column: the raw column with the user's id. Columns that an operator computes from it are not followed,
            except those that `rename` gives another name.
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
    """Returns whether a key (one value, or several joined values) contains the id of a user."""
    parts = key.split(SEPARATOR)
    if len(parts) == 1:
        return key in users
    return any(place < len(parts) and parts[place] in users for place in positions)


def tombstones(ids: pa.ChunkedArray) -> pa.Array:
    """Returns, for n ids of a vocabulary (int32), the texts that replace their values: (n,) string."""
    texts = ids.combine_chunks().cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(SEPARATOR + "erased"), texts, ":")


def refresh_workflow(lake: Lake, version: str, tables: UserTables) -> None:
    """Updates the numbers of rows in workflow.json, after tables of a version have lost rows.

    These are the sizes of the version's tables, and the numbers of rare values of the users' vocabularies.
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
