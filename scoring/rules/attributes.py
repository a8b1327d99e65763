"""Reads the business rules of a run, and the tables with the item attributes that they use.

The tables are checked before a worker starts. The result for an attribute has one value code per candidate
item, in the order of the candidate items.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from conf.errors import ConfigError, DataError
from conf.messages import counted
from conf.plugins import digests_of
from conf.raw_types import Column, RawTable
from conf.types import ListRules
from etl.raw.files import find_files
from scoring.rules.item_rule import NO_VALUE, ItemAttribute
from scoring.rules.request import (
    AttributeTable,
    RulesRequest,
    attributes_used,
    read_rule_settings,
    rules_request,
)
from storage import file_io
from storage.manifest import digest_of
from storage.run_context import RunContext

SECTION = "score.rules.attributes"  # the section of the configuration that messages name


def read_attribute(table: AttributeTable) -> pa.Table:
    """Reads the rows of a table that have both a key and a value.

    Returns a table with the columns key and value. Both are strings.

    Raises:
        ConfigError: there is no file at the path of the table, or the declared type of a column cannot
            represent its stored type.
        DataError: a file of the table cannot be read or lacks a column, a row cannot be parsed, or an item
            has several rows.
    """
    # Import this only here: it needs pyspark, which may be missing in a process whose rules use no
    # attributes.
    from etl.prepare.attributes import read_whole_table

    of_roles, names = typed_table(table)
    read, _ = read_whole_table(of_roles, tuple(files_of(table)), SECTION)
    columns = {column.name: column for column in of_roles.columns}
    values = {
        new: _texts(read.column(names[role]), columns[names[role]])
        for new, role in (("key", table.key), ("value", table.column))
    }
    rows = pa.table(values).drop_null().combine_chunks()
    counts = pc.value_counts(rows.column("key").combine_chunks())
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        verb = "has" if len(repeated) == 1 else "have"
        raise DataError(
            f"{table.path}: the values of {table.key} are not unique: {counted(len(repeated), 'item')} "
            f"{verb} several rows, such as {repeated[0].as_py()!r}",
            "keep one row per item",
        )
    return rows


def typed_table(table: AttributeTable) -> tuple[RawTable, dict[str, str]]:
    """Returns the table's schema, and the names of `table.key` and `table.column` in it, as a dict."""
    return table.attribute.typed({table.key: "string", table.column: "string"})


def align(table: AttributeTable, rows: pa.Table, items: pa.Array) -> ItemAttribute:
    """Returns the attribute values of the candidate items, in the order of these items.

    Args:
        table: the table that the rows come from, for error messages.
        rows: the result of read_attribute.
        items: (N,) keys of the candidate items.

    Raises:
        DataError: none of the items has a value, so the keys of the table are probably not the item ids of
            the log.
    """
    row_of_item = pc.index_in(items, value_set=rows.column("key").combine_chunks())
    encoded = rows.column("value").combine_chunks().dictionary_encode()
    codes = (
        encoded.indices.take(row_of_item).fill_null(NO_VALUE).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    if len(items) and not (codes != NO_VALUE).any():
        example = rows.column("key")[0].as_py() if rows.num_rows else "none"
        raise DataError(
            f"{table.path}: none of the {len(items)} candidate items, such as {items[0].as_py()!r}, "
            f"has a value of {table.column}; the keys of the table look like {example!r}",
            f"check that {table.key} has the item ids of the log",
        )
    return ItemAttribute(codes, [str(value) for value in encoded.dictionary.to_pylist()])


def digest_of_table(rows: pa.Table) -> str:
    """Returns a digest of the keys and values in `rows` that does not depend on their order."""
    ordered = rows.sort_by("key")
    return digest_of([ordered.column("key").to_pylist(), ordered.column("value").to_pylist()])


def files_of(table: AttributeTable) -> list[str]:
    """Returns the paths of a table's files, in the order of their names.

    Raises:
        ConfigError: there is no file.
    """
    path, form = table.path, table.attribute.format
    source, inner = file_io.filesystem(path)
    if form != "delta" and source.get_file_info(inner).type == fs.FileType.Directory:
        path = f"{path.rstrip('/')}/*"
    paths = find_files(path, form)
    if not paths:
        raise ConfigError(f"{SECTION}: there is no file at {table.path}", "correct `path` of this attribute")
    return list(paths)


def _texts(values: pa.ChunkedArray, column: Column) -> pa.Array:
    """Converts the values of a column to strings, which rules compare."""
    encoded = values.combine_chunks()
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    distinct = encoded.dictionary
    if column.type == "bool":
        distinct = distinct.cast(pa.bool_())
    elif column.type == "date":
        distinct = distinct.cast(pa.int32()).cast(pa.date32())
    return distinct.cast(pa.string()).take(encoded.indices)


# The code below reads the business rules of a run. Their tables are checked before a worker starts.


def read_rules(context: RunContext) -> tuple[RulesRequest | None, dict[str, str]]:
    """Returns the request for the business rules, and the digest of their tables.

    The request is None if no rules are configured. The digest is in a dictionary, under the key `rules`. The
    dictionary is empty if the rules read no table. The code of rules of other packages is part of the digest.

    Raises:
        ConfigError, DataError: the errors that read_attribute, rule_digests and the rules' function `check`
            raise.
    """
    config = context.config
    rules = config.score.rules
    request = rules_request(rules, config.score.k, context.run_date, config.folders)
    if request is None:
        return None, {}
    tables = {name: table for rule in request.rules for name, table in rule.attributes}
    rows = {name: read_attribute(table) for name, table in tables.items()}
    for plugin, settings in read_rule_settings(rules):
        if hasattr(plugin.load(), "check"):
            plugin.member("check")(settings, {name: rows[name] for name in attributes_used(settings)})
    digests = rule_digests(rules, context.run_date)
    for name, table in tables.items():
        digests[f"{table.path}:{table.column}"] = digest_of_table(rows[name])
    return request, {"rules": digest_of(digests)} if digests else {}


def rule_digests(rules: ListRules | None, run_date: str) -> dict[str, str]:
    """Returns digests of the code of rules from other packages, and of the tables that rules read.

    The tables of attributes are not included. The result is empty if there are no digests.

    Raises:
        ConfigError: see `read_rule_settings`.
    """
    configured = read_rule_settings(rules)
    digests = digests_of(plugin for plugin, _ in configured)
    for plugin, settings in configured:
        if hasattr(plugin.load(), "digest"):
            digests[f"rules.{plugin.name}.tables"] = str(plugin.member("digest")(settings, run_date))
    return digests
