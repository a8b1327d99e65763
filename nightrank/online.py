"""Looks up lists and features of single users and items in the store that the sink `redis` fills.

    from nightrank.online import open_online

    with open_online("redis://localhost:6379/0") as store:
        store.recommendations(["u1", "u2"])  # lists, as the table `recommendations` of the lake
        store.users(["u1"])  # features, as the table `users`

The functions read only this store, not the data lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from conf.errors import ConfigError, DataError, InfrastructureError
from nightrank.frames import listed, require_packages
from scoring.delivery.online_format import (
    LISTS,
    MARKER,
    Pointer,
    RedisAddress,
    bucket_of,
    features_of,
    lists_of,
    pointer_name,
    redis_errors,
    redis_url,
)
from storage.read_parquet import arrow_type

if TYPE_CHECKING:
    from redis import Redis

_ATTEMPTS = 3


def open_online(
    url: str,
    *,
    prefix: str = "nightrank",
    user: str | None = None,
    password: str | None = None,
    ca_file: str | None = None,
) -> OnlineReader:
    """Opens a store for reading. The connection is opened at the first look-up.

    Args:
        url: redis://host:port/database, or rediss:// for TLS.
        prefix: the `prefix` of the sink.
        user, password: the credentials; None for a login without them.
        ca_file: file with the certificates of trusted authorities; None for the certificates of the system.

    Raises:
        ConfigError: the URL is invalid, or redis-py is not installed.
    """
    require_packages(["redis"], "online", "a look-up")
    try:
        address = RedisAddress(redis_url(url), user, password, ca_file)
    except ValueError as error:
        raise ConfigError(f"the url is not the address of a store: {error}", "correct the url") from error
    return OnlineReader(address, prefix)


class OnlineReader:
    """A store of lists and features, from `open_online`. Several threads may use it at the same time.

    Each look-up takes two round trips: one for the pointer, which names the tables of the last delivery, and
    one for all keys. All values of a look-up come from the same delivery.

    Args:
        address: the server.
        prefix: the beginning of the names of all keys.
    """

    def __init__(self, address: RedisAddress, prefix: str) -> None:
        self._address = address
        self._prefix = prefix
        self._client: Redis = address.client()

    def current(self) -> Pointer:
        """Returns the last delivery: date, versions, time, and the tables with their numbers of keys.

        Raises:
            ConfigError: the server rejects the credentials.
            DataError: there was no delivery, or a newer release made the delivery.
            InfrastructureError: the server cannot be reached.
        """
        name = pointer_name(self._prefix)
        with redis_errors(self._address):
            text = self._client.get(name)
        where = f"{self._address.url} {name}"
        if text is None:
            raise DataError(
                f"{where} does not exist",
                "run deliver_recommendations with a sink of the kind redis, and pass its url and prefix",
            )
        return Pointer.from_text(text, where)

    def recommendations(self, users: Sequence[str | int]) -> pa.Table:
        """Returns the lists of users, in the order of `users`; users without a list are left out.

        Returns:
            A table with the columns and types of the table `recommendations` of the lake.

        Raises:
            The errors of `current`.
        """
        pointer, values = self._values(LISTS, users)
        return lists_of(values, pointer)

    def users(self, keys: Sequence[str | int]) -> pa.Table:
        """Returns the features of users, in the order of `keys`; unknown users are left out.

        Returns:
            A table with the columns and types of the table `users` of the lake. The key is the first column.

        Raises:
            DataError: the sink does not deliver users, or `current` raises this error.
        """
        return self._features("users", keys)

    def items(self, keys: Sequence[str | int]) -> pa.Table:
        """Returns the features of items, as `users` does for users."""
        return self._features("items", keys)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def __enter__(self) -> OnlineReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _features(self, name: str, keys: Sequence[str | int]) -> pa.Table:
        pointer, values = self._values(name, keys)
        columns = pointer.tables[name].columns
        unknown = [(column, kind) for column, kind in columns if arrow_type(kind) is None]
        if unknown:
            raise DataError(
                f"{self._address.url} has columns of types that this release does not support: {unknown}",
                "use the release that delivered the tables, or a newer one",
            )
        return features_of(values, pa.schema([(column, arrow_type(kind)) for column, kind in columns]))

    def _values(self, name: str, keys: Sequence[str | int]) -> tuple[Pointer, Mapping[str, bytes]]:
        """Returns the pointer to the last delivery, and the values of those keys that exist."""
        names = [str(key) for key in listed("keys", keys)]
        wanted = [key for key in dict.fromkeys(names) if key != MARKER]
        for _ in range(_ATTEMPTS):
            pointer = self.current()
            table = pointer.tables.get(name)
            if table is None:
                raise DataError(
                    f"{self._address.url} has no table {name!r}, only {sorted(pointer.tables)}",
                    f"add {name} to the key `features` of the sink, and run deliver_recommendations again",
                )
            buckets = table.bucket_names(self._prefix, name)
            of_bucket: dict[str, list[str]] = {}
            for key in wanted:
                of_bucket.setdefault(buckets[bucket_of(key, len(buckets))], []).append(key)
            values_by_key = self._read(of_bucket)
            if values_by_key is not None:
                return pointer, {key: values_by_key[key] for key in wanted if key in values_by_key}
        raise InfrastructureError(
            f"{self._address.url}: buckets of the table {name} are missing",
            "set maxmemory-policy of the server to noeviction, so that it deletes no keys; then run "
            "deliver_recommendations again",
        )

    def _read(self, of_bucket: Mapping[str, Sequence[str]]) -> dict[str, bytes] | None:
        """Returns the values of the keys that exist; None if a bucket (a hash of Redis) does not exist."""
        with redis_errors(self._address):
            pipe = self._client.pipeline(transaction=False)
            for bucket, keys in of_bucket.items():
                pipe.hmget(bucket, [MARKER, *keys])
            answers = pipe.execute()
        values_by_key: dict[str, bytes] = {}
        for keys, (marker, *values) in zip(of_bucket.values(), answers, strict=True):
            if marker is None:
                return None
            values_by_key |= {
                key: value for key, value in zip(keys, values, strict=True) if value is not None
            }
        return values_by_key
