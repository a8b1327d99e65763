"""The format of a key-value store of lists and features: names of keys, values, and the pointer.

docs/delivery.md describes this format for readers in other languages. The sink `redis` writes it, and
nightrank/online.py reads it.

The keys of a table (`lists`, `users` or `items`) are fields of Redis hashes. These hashes are the buckets of
the table. A delivery writes new buckets, which no reader uses yet. Then it replaces one pointer, which names
the buckets of all tables.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from conf.errors import ConfigError, DataError, InfrastructureError, NightrankError
from scoring.requests import VARIANT
from storage.format_versions import Format

if TYPE_CHECKING:
    from redis import Redis

LISTS = "lists"
POINTER = Format("pointer of a key-value store")

# Approximate number of keys in a bucket. With this number, a table has few buckets, and each bucket is small.
KEYS_PER_BUCKET = 1000

# A field of each bucket (a hash of Redis) that is not a key of the table. It lets a bucket exist before its
# first key is written. Its value is the number of buckets of the table, which an erasure needs.
MARKER = "\0"
LIST_COLUMNS = ("user_id", "position", "item_id", "score", "reason")
_VERSIONS = ("model_version", "workflow_version")
_POINTER_TEXTS = ("date", *_VERSIONS, "delivered_at")
_RANKED = "ranked"  # the reason of most list entries, which stored lists leave out


@dataclass(frozen=True)
class OnlineTable:
    """The buckets of one table.

    Attributes:
        attempt: a string in the names of the buckets. No other delivery uses this string.
        digest: the digest of the partition of the lake from which the table was made.
        buckets: number of buckets.
        keys: number of keys in all buckets.
        columns: (name, type) of each column of the table in the lake. The first one is the key. Empty for
            lists.
    """

    attempt: str
    digest: str
    buckets: int
    keys: int
    columns: tuple[tuple[str, str], ...] = ()

    def bucket_names(self, prefix: str, name: str) -> list[str]:
        """Returns the names of all buckets of the table `name`."""
        return [f"{prefix}:{name}:{self.attempt}:{bucket}" for bucket in range(self.buckets)]


@dataclass(frozen=True)
class Pointer:
    """The value of the pointer: the tables that readers use.

    Attributes:
        date: the ISO run date of the lists.
        model_version, workflow_version: the versions of the model and of the workflow that made the lists.
        delivered_at: time of the delivery in UTC.
        tables: the tables by name.
        variants: during an experiment, maps each variant to its `model_version` and `workflow_version`. The
            value of a list then names its variant, and `model_version` and `workflow_version` are those of
            the control.
    """

    date: str
    model_version: str
    workflow_version: str
    delivered_at: str
    tables: Mapping[str, OnlineTable]
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_text(self) -> str:
        """Returns the pointer as JSON text, the form in which the key-value store has it."""
        values = {name: value for name, value in asdict(self).items() if name != "variants" or value}
        return json.dumps(POINTER.stamp(values), ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str | bytes, where: str) -> Pointer:
        """Parses the value of a pointer.

        Args:
            text: the value.
            where: the address of the store and the key of the pointer, for error messages.

        Raises:
            DataError: a newer release wrote the text, or the text is not a pointer.
        """
        remedy = "delete this key, and run deliver_recommendations again"
        try:
            values = POINTER.check(json.loads(text), where)
            tables = {name: _table(table) for name, table in values["tables"].items()}
            texts = {name: str(values[name]) for name in _POINTER_TEXTS}
            variants = {
                str(name): {version: str(variant[version]) for version in _VERSIONS}
                for name, variant in values.get("variants", {}).items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{where} is not a pointer: {error!r}", remedy) from error
        return cls(**texts, tables=tables, variants=variants)


def _table(values: Mapping[str, Any]) -> OnlineTable:
    """Parses the description of one table in a pointer. Keys that a later release added are ignored."""
    columns = tuple((str(name), str(kind)) for name, kind in values["columns"])
    buckets, keys = int(values["buckets"]), int(values["keys"])
    return OnlineTable(str(values["attempt"]), str(values["digest"]), buckets, keys, columns)


def pointer_name(prefix: str) -> str:
    """Returns the key under which the key-value store has the pointer to the last delivery."""
    return f"{prefix}:current"


def buckets_for(keys: int) -> int:
    """Returns the number of buckets of a table with this number of keys."""
    return max(1, -(-keys // KEYS_PER_BUCKET))


def bucket_of(key: str, buckets: int) -> int:
    """Returns the bucket of a key: the CRC-32 of its UTF-8 bytes, modulo the number of buckets."""
    return zlib.crc32(key.encode()) % buckets


def list_values(batch: pa.RecordBatch) -> list[str]:
    """Returns the text of each entry of a list: `["i17",0.25]`, or `["i17",0.25,"explore"]`.

    During an experiment, the first entry of a list is `["i17",0.25,"ranked","treatment"]`.

    Args:
        batch: rows with the columns item_id, score and reason; during an experiment, also position and
            variant.
    """
    items = texts(batch.column("item_id"))
    scores = texts(batch.column("score"))
    reasons = batch.column("reason").to_pylist()
    starts = [f"[{item},{score}" for item, score in zip(items, scores, strict=True)]
    if VARIANT in batch.schema.names:
        pairs = zip(batch.column("position").to_pylist(), batch.column(VARIANT).to_pylist(), strict=True)
        named = [variant if position == 1 else None for position, variant in pairs]
    else:
        named = [None] * len(batch)
    return [
        f"{start},{_text(reason)},{_text(variant)}]"
        if variant is not None
        else (f"{start}]" if reason == _RANKED else f"{start},{_text(reason)}]")
        for start, reason, variant in zip(starts, reasons, named, strict=True)
    ]


def feature_values(batch: pa.RecordBatch, names: Sequence[str]) -> list[str]:
    """Returns the text to store for each row: a JSON array with the row's values."""
    columns = [texts(batch.column(name)) for name in names]
    return [f"[{','.join(row)}]" for row in zip(*columns, strict=True)] if columns else ["[]"] * len(batch)


def texts(values: pa.Array) -> list[str]:
    """Returns the JSON text of each value. A float becomes the shortest decimal that parses to this float.

    JSON cannot represent infinities and NaN, so they become the strings "inf", "-inf" and "nan".
    """
    kind = values.type
    if pa.types.is_list(kind):
        inner = texts(values.flatten())
        ends, result = 0, []
        for length in values.value_lengths().to_pylist():
            result.append("null" if length is None else f"[{','.join(inner[ends : ends + length])}]")
            ends += length or 0
        return result
    if pa.types.is_string(kind):
        return [_text(value) for value in values.to_pylist()]
    plain = values.cast(pa.string()).to_pylist()
    if pa.types.is_floating(kind):
        return [_float_text(text) for text in plain]
    return ["null" if text is None else text for text in plain]


def _float_text(text: str | None) -> str:
    if text is None:
        return "null"
    if text == "-0":  # a JSON reader would parse -0 as the integer 0, and lose the sign
        return "-0.0"
    return text if math.isfinite(float(text)) else f'"{text}"'


def lists_of(values: Mapping[str, bytes], pointer: Pointer) -> pa.Table:
    """Returns lists as rows of the table `recommendations`; during an experiment, with the column variant.

    Args:
        values: maps users to values of the table `lists`.
        pointer: the pointer that was read before the values.
    """
    rows: list[tuple[Any, ...]] = []
    control = {"model_version": pointer.model_version, "workflow_version": pointer.workflow_version}
    for user, value in values.items():
        entries = json.loads(value)
        variant = entries[0][3] if entries and len(entries[0]) > 3 else None
        made_by = control if variant is None else pointer.variants.get(variant, control)
        versions = [made_by[name] for name in _VERSIONS]
        for position, entry in enumerate(entries, start=1):
            reason = entry[2] if len(entry) > 2 else _RANKED
            rows.append((user, position, *entry[:2], reason, *versions, variant))
    text = pa.string()
    kinds = (text, pa.int32(), text, pa.float32(), text, text, text, *([text] if pointer.variants else []))
    columns = [pa.array([row[index] for row in rows], kind) for index, kind in enumerate(kinds)]
    names = [*LIST_COLUMNS, *_VERSIONS, VARIANT]
    return pa.Table.from_arrays(columns, names[: len(kinds)])


def features_of(values: Mapping[str, bytes], schema: pa.Schema) -> pa.Table:
    """Returns features as rows of the table `users` or `items`.

    Args:
        values: maps users or items to values of the table.
        schema: the columns. The first one is the key.
    """
    rows = [json.loads(value) for value in values.values()]
    columns = [pa.array(values, pa.string())]
    for index, column in enumerate(list(schema)[1:]):
        columns.append(pa.array(_parsed((row[index] for row in rows), column.type), column.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _parsed(values: Iterable[Any], kind: pa.DataType) -> list[Any]:
    """Converts JSON values to an Arrow type: the strings "inf", "-inf" and "nan" become floats."""
    if pa.types.is_list(kind):
        return [None if value is None else _parsed(value, kind.value_type) for value in values]
    if pa.types.is_floating(kind):
        return [None if value is None else float(value) for value in values]
    return list(values)


def _text(value: str | None) -> str:
    return json.dumps(value, ensure_ascii=False)


# The address of a server with the Redis protocol, its client, and its errors.

_CONNECT_TIMEOUT_S = 10
_ANSWER_TIMEOUT_S = 60
_RULE = "write redis://host:port/database, or rediss://host:port/database for TLS"


@dataclass(frozen=True)
class RedisAddress:
    """The address of a server and the credentials for it. `repr` shows no credentials.

    Attributes:
        url: redis://host:port/database, or rediss:// for TLS.
        user, password: the credentials; None for a login without them.
        ca_file: file with the certificates of authorities to trust; None for the certificates of the system.
    """

    url: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    def client(self) -> Redis:
        """Returns a client, which connects when it is first used. Close it, or use it in a `with` block."""
        import redis

        tls: dict[str, Any] = {}
        if self.url.startswith("rediss:") and self.ca_file is not None:
            tls = {"ssl_ca_certs": os.path.expanduser(self.ca_file)}
        return redis.Redis.from_url(
            self.url,
            username=self.user,
            password=self.password,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            socket_timeout=_ANSWER_TIMEOUT_S,
            protocol=2,
            **tls,
        )


def redis_url(url: str) -> str:
    """Returns the URL of a Redis server. Raises ValueError if it is no URL or has unsupported parts."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(_RULE)
    if "@" in parts.netloc:
        raise ValueError("the url of a sink must not contain a user or a password")
    database = parts.path.strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError(f"the database must be a number: {_RULE}")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"the port must be a number from 0 to 65535: {_RULE}") from error
    return url


@contextmanager
def redis_errors(address: RedisAddress) -> Iterator[None]:
    """Converts errors of the server or the network in a `with` block to NightrankErrors.

    Raises:
        ConfigError: the server rejects the user, the password or a command of this user.
        InfrastructureError: any other error of the server or the network.
    """
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise redis_error(address, error) from error


def redis_error(address: RedisAddress, error: Exception) -> NightrankError:
    """Returns the NightrankError for an error of the Redis client."""
    from redis import exceptions as e

    problem = f"{address.url}: {error or type(error).__name__}"
    if isinstance(error, e.AuthenticationError | e.AuthorizationError | e.NoPermissionError):
        return ConfigError(
            problem, "correct the user and the password, or the commands that this user may run"
        )
    if isinstance(error, e.OutOfMemoryError):
        return InfrastructureError(
            problem,
            "give the server more memory (maxmemory), or set a smaller ttl_hours: while a delivery runs, "
            "the server stores the old and the new lists. The served lists are unchanged",
        )
    return InfrastructureError(
        problem, "check that the server can be reached; a retry may help. The served lists are unchanged"
    )
