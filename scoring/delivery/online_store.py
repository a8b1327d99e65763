"""Writes tables to a key-value store with the Redis protocol, and then makes readers use them.

A delivery writes new buckets with a time to live, so the server deletes the buckets of a killed delivery. One
transaction then replaces the pointer, removes the time to live of the new buckets, and sets a time to live on
the old buckets.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from conf.errors import InfrastructureError
from conf.lazy_imports import F
from scoring.delivery.online_format import (
    LISTS,
    MARKER,
    OnlineTable,
    Pointer,
    RedisAddress,
    bucket_of,
    buckets_for,
    feature_values,
    list_values,
    pointer_name,
    redis_errors,
)
from scoring.delivery.published_lists import EraseRequest
from spark.rows import Rows, map_rows, records

if TYPE_CHECKING:
    from redis import Redis

Batches = Iterable[pa.RecordBatch]

# A task sends its values when they have this number of characters in total. This limits the memory of a task.
_PIPELINE_CHARACTERS = 2**20
_NAMES_PER_PIPELINE = 5_000
_WRITTEN = pa.schema([("keys", pa.int64())])
_SWITCH_ATTEMPTS = 100


@dataclass(frozen=True)
class Source:
    """A table of the lake to write.

    Attributes:
        name: `lists`, `users` or `items`.
        key: the column with the key, a string column without nulls.
        order: the columns by which the rows of one key are sorted; empty if each key has one row.
        digest: the digest of the partition.
        keys: number of different keys.
        columns: see OnlineTable.
    """

    name: str
    key: str
    order: tuple[str, ...]
    digest: str
    keys: int
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class OnlineStore:
    """A key-value store.

    Attributes:
        address: the server.
        prefix: the beginning of the names of all keys.
        ttl_s: seconds until new buckets and replaced buckets expire.
        connections: number of tasks that write at the same time.
    """

    address: RedisAddress
    prefix: str
    ttl_s: int
    connections: int

    def current(self, client: Redis) -> Pointer | None:
        """Returns the pointer; None if nothing has been delivered yet."""
        text = client.get(pointer_name(self.prefix))
        where = f"{self.address.url} {pointer_name(self.prefix)}"
        return None if text is None else Pointer.from_text(text, where)

    def is_complete(self, client: Redis, name: str, table: OnlineTable) -> bool:
        """Returns whether the buckets of a table still have all keys that were delivered."""
        return self.count(client, table.bucket_names(self.prefix, name)) == table.keys

    def write(self, client: Redis, source: Source, rows: Rows) -> OnlineTable:
        """Writes the rows of a table into new buckets, and counts their keys.

        Raises:
            InfrastructureError: the buckets do not have exactly `source.keys` keys.
        """
        table = OnlineTable(
            uuid.uuid4().hex[:12], source.digest, buckets_for(source.keys), source.keys, source.columns
        )
        names = table.bucket_names(self.prefix, source.name)
        self._create(client, names)
        writer = BucketWriter(self.address, source, tuple(names))
        sorted_rows = _by_bucket(rows, source, table.buckets, self.connections)
        records(map_rows(sorted_rows, writer, _WRITTEN))
        keys = self.count(client, names)
        if keys != source.keys:
            raise InfrastructureError(
                f"{self.address.url}: the new buckets of the table {source.name} have {keys} keys, but the "
                f"table has {source.keys}",
                "run the job again. Perhaps the server evicts keys (its setting maxmemory-policy), or the "
                "delivery took longer than ttl_hours. The served lists are unchanged",
            )
        return table

    def switch(self, client: Redis, new: Pointer) -> bool:
        """Makes readers use the tables of a new pointer.

        Does nothing if the store has lists of a later date.

        Other deliveries may run at the same time. Readers always see tables of the same delivery.

        Returns:
            Whether readers now use the new pointer.

        Raises:
            InfrastructureError: other deliveries replaced the pointer in each of 100 attempts.
        """
        from redis.exceptions import WatchError

        name = pointer_name(self.prefix)
        for _ in range(_SWITCH_ATTEMPTS):
            with client.pipeline(transaction=True) as pipe:
                pipe.watch(name)
                current = self.current(client)
                if current is not None and current.date > new.date:
                    return False
                pipe.multi()
                pipe.set(name, new.to_text())
                used = self._buckets(new)
                for bucket in used:
                    pipe.persist(bucket)
                for bucket in self._buckets(current) if current else []:
                    if bucket not in used:
                        pipe.expire(bucket, self.ttl_s)
                try:
                    pipe.execute()
                except WatchError:
                    continue
                return True
        raise InfrastructureError(
            f"{self.address.url}: {name} cannot be replaced, because other deliveries replace it again and "
            "again",
            "run the job again",
        )

    def _buckets(self, pointer: Pointer) -> dict[str, None]:
        """Returns the names of all buckets that a pointer names."""
        tables = pointer.tables.items()
        return dict.fromkeys(
            bucket for name, table in tables for bucket in table.bucket_names(self.prefix, name)
        )

    def _create(self, client: Redis, buckets: Sequence[str]) -> None:
        """Creates buckets with a time to live.

        Tasks only add keys to these buckets. So if Spark gives up a task that still runs, the task never sets
        a time to live on a bucket that readers use.
        """
        for start in range(0, len(buckets), _NAMES_PER_PIPELINE):
            pipe = client.pipeline(transaction=False)
            for bucket in buckets[start : start + _NAMES_PER_PIPELINE]:
                pipe.hset(bucket, MARKER, len(buckets))
                pipe.expire(bucket, self.ttl_s)
            pipe.execute()

    def count(self, client: Redis, buckets: Sequence[str]) -> int:
        """Returns the number of keys in all these buckets, without markers. A missing bucket counts as -1."""
        keys = -len(buckets)
        for start in range(0, len(buckets), _NAMES_PER_PIPELINE):
            pipe = client.pipeline(transaction=False)
            for bucket in buckets[start : start + _NAMES_PER_PIPELINE]:
                pipe.hlen(bucket)
            keys += sum(pipe.execute())
        return keys


@dataclass(frozen=True)
class BucketWriter:
    """Writes batches of rows, which are sorted by bucket and key. Spark pickles this object.

    Attributes:
        address: the server.
        source: the table.
        buckets: the names of the buckets.
    """

    address: RedisAddress
    source: Source
    buckets: tuple[str, ...]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Writes the rows in pipelines, and yields the number of written keys."""
        values = grouped(batches, self.source) if self.source.order else plain(batches, self.source)
        pending: dict[str, dict[str, str]] = {}
        characters = keys = 0
        with redis_errors(self.address), self.address.client() as client:
            for key, value in values:
                bucket = self.buckets[bucket_of(key, len(self.buckets))]
                pending.setdefault(bucket, {})[key] = value
                characters += len(key) + len(value)
                keys += 1
                if characters >= _PIPELINE_CHARACTERS:
                    self._send(client, pending)
                    characters = 0
            self._send(client, pending)
        yield pa.RecordBatch.from_arrays([pa.array([keys], pa.int64())], schema=_WRITTEN)

    def _send(self, client: Redis, pending: dict[str, dict[str, str]]) -> None:
        """Sends all pending keys and values to Redis in one round trip, and clears `pending`."""
        pipe = client.pipeline(transaction=False)
        for bucket, values in pending.items():
            pipe.hset(bucket, items=[word for pair in values.items() for word in pair])
        pipe.execute()
        pending.clear()


def grouped(batches: Batches, source: Source) -> Iterator[tuple[str, str]]:
    """Yields each user with the user's list as JSON text. The rows of a user must be consecutive."""

    def entries() -> Iterator[tuple[str, str]]:
        for batch in batches:
            yield from zip(batch.column(source.key).to_pylist(), list_values(batch), strict=True)

    for key, group in groupby(entries(), key=lambda entry: entry[0]):
        yield key, f"[{','.join(text for _, text in group)}]"


def plain(batches: Batches, source: Source) -> Iterator[tuple[str, str]]:
    """Yields the key of each row with the row's other columns as JSON text."""
    names = [name for name, _ in source.columns if name != source.key]
    for batch in batches:
        yield from zip(batch.column(source.key).to_pylist(), feature_values(batch, names), strict=True)


def _by_bucket(rows: Rows, source: Source, buckets: int, tasks: int) -> Rows:
    """Sorts rows by bucket and key. All rows of a bucket are in one Spark partition."""
    order = ["_bucket", source.key, *source.order]
    if not isinstance(rows, pa.Table):
        bucket = F.pmod(F.crc32(F.encode(source.key, "UTF-8")), F.lit(buckets))
        return (
            rows.withColumn("_bucket", bucket)
            .repartition(min(tasks, buckets), "_bucket")
            .sortWithinPartitions(*order)
        )
    keys = rows.column(source.key).combine_chunks().dictionary_encode()
    numbers = pa.array([bucket_of(key, buckets) for key in keys.dictionary.to_pylist()], pa.int64())
    placed = rows.append_column("_bucket", numbers.take(keys.indices))
    return placed.sort_by([(name, "ascending") for name in order])


def tables_of(pointer: Pointer | None) -> Mapping[str, OnlineTable]:
    """Returns the tables that a pointer names; none if there is no pointer."""
    return pointer.tables if pointer is not None else {}


# The code below erases users from a key-value store.

_OF_USERS = (LISTS, "users")
_NAMES_PER_SCAN = 1000
_FIELDS_PER_PIPELINE = 10_000
_ATTEMPTS = 100


def erase_users(store: OnlineStore, client: Redis, request: EraseRequest) -> int:
    """Deletes the keys of users from all buckets of lists and users, also those of replaced deliveries.

    Then it writes the new numbers of keys and the new digests of the lake's tables into the pointer. So the
    next delivery does not write unchanged tables again.

    Returns:
        The number of deleted keys.

    Raises:
        InfrastructureError: deliveries replaced the pointer in each of 100 attempts.
    """
    users, deleted = sorted(request.users), 0
    for beginning, numbers in _attempts(store, client).items():
        pending: list[tuple[str, list[str]]] = []
        fields = 0
        for bucket, of_bucket in _keys_by_bucket(client, beginning, numbers, users):
            for start in range(0, len(of_bucket), _FIELDS_PER_PIPELINE):
                keys = of_bucket[start : start + _FIELDS_PER_PIPELINE]
                if fields + len(keys) > _FIELDS_PER_PIPELINE:
                    deleted += _delete(client, pending)
                    pending, fields = [], 0
                pending.append((bucket, keys))
                fields += len(keys)
        deleted += _delete(client, pending)
    _update_pointer(store, client, request)
    return deleted


def _attempts(store: OnlineStore, client: Redis) -> dict[str, set[int]]:
    """Returns the numbers of the existing buckets of the tables `lists` and `users`.

    The result maps the name of a delivery's buckets, without the number at its end, to these numbers.
    """
    buckets: dict[str, set[int]] = {}
    for table in _OF_USERS:
        for name in client.scan_iter(match=f"{store.prefix}:{table}:*", count=_NAMES_PER_SCAN):
            beginning, _, number = name.decode().rpartition(":")
            buckets.setdefault(beginning, set()).add(int(number))
    return buckets


def _keys_by_bucket(
    client: Redis, beginning: str, numbers: set[int], users: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yields buckets of one delivery, each with the users whose keys it can have.

    Args:
        client: the connection.
        beginning: the beginning of the names of the buckets.
        numbers: the existing buckets. Others may have expired.
        users: the users.
    """
    marker = client.hget(f"{beginning}:{min(numbers)}", MARKER)
    if not marker:
        # The bucket has expired, or an earlier release wrote it, so the number of buckets is unknown.
        yield from ((f"{beginning}:{number}", list(users)) for number in sorted(numbers))
        return
    by_bucket: dict[int, list[str]] = {}
    for user in users:
        by_bucket.setdefault(bucket_of(user, int(marker)), []).append(user)
    for number in sorted(by_bucket.keys() & numbers):
        yield f"{beginning}:{number}", by_bucket[number]


def _delete(client: Redis, keys: Sequence[tuple[str, Sequence[str]]]) -> int:
    """Deletes keys of buckets in one round trip. Returns how many of them existed."""
    pipe = client.pipeline(transaction=False)
    for bucket, of_bucket in keys:
        pipe.hdel(bucket, *of_bucket)
    return sum(pipe.execute())


def _update_pointer(store: OnlineStore, client: Redis, request: EraseRequest) -> None:
    from redis.exceptions import WatchError

    name = pointer_name(store.prefix)
    for _ in range(_ATTEMPTS):
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(name)
            current = store.current(client)
            if current is None:
                return
            tables = {
                table: replace(
                    stored,
                    digest=request.digests.get(stored.digest, stored.digest),
                    keys=store.count(client, stored.bucket_names(store.prefix, table)),
                )
                for table, stored in current.tables.items()
            }
            pipe.multi()
            pipe.set(name, replace(current, tables=tables).to_text())
            try:
                pipe.execute()
            except WatchError:
                continue
            return
    raise InfrastructureError(
        f"{store.address.url}: users cannot be erased from {name}, because deliveries replace it again and "
        "again",
        "run erase_user again",
    )
