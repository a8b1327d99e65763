"""Erases users from a key-value store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from conf.errors import InfrastructureError
from scoring.delivery.erase_request import EraseRequest
from scoring.delivery.online_format import LISTS, pointer_name
from scoring.delivery.online_store import OnlineStore

if TYPE_CHECKING:
    from redis import Redis

_OF_USERS = (LISTS, "users")
_BUCKETS_PER_PIPELINE = 1000
_ATTEMPTS = 100


def erase_users(store: OnlineStore, client: Redis, request: EraseRequest) -> int:
    """Deletes the keys of users from all buckets of lists and users, also from those of replaced deliveries.

    Then the pointer gets the new numbers of keys, and the new digests of the tables in the lake, so that the
    next delivery does not write unchanged tables again.

    Returns:
        The number of deleted keys.

    Raises:
        InfrastructureError: deliveries replaced the pointer in each of 100 attempts.
    """
    names = [
        name
        for table in _OF_USERS
        for name in client.scan_iter(match=f"{store.prefix}:{table}:*", count=_BUCKETS_PER_PIPELINE)
    ]
    deleted = sum(
        _delete(client, names[start : start + _BUCKETS_PER_PIPELINE], sorted(request.users))
        for start in range(0, len(names), _BUCKETS_PER_PIPELINE)
    )
    _update_pointer(store, client, request)
    return deleted


def _delete(client: Redis, buckets: Sequence[bytes], users: Sequence[str]) -> int:
    pipe = client.pipeline(transaction=False)
    for bucket in buckets:
        pipe.hdel(bucket, *users)
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
        f"{store.address.url}: deliveries replace {name} all the time", "run erase_user again"
    )
