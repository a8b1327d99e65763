"""The Redis sink: delivers lists, and optionally features, to a key-value store for serving programs.

online_store.py writes the tables, makes readers use them, and lets old tables expire.

The sink supports Redis, Valkey and other servers with the Redis protocol. It does not support Redis Cluster.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from conf.errors import ConfigError
from conf.types import PositiveInt, Secret, SinkSettings
from scoring.delivery.online_format import LISTS, Pointer, RedisAddress, redis_errors, redis_url
from scoring.delivery.online_store import OnlineStore, Source, erase_users, tables_of
from scoring.delivery.published_lists import Delivered, Erased, EraseRequest, PublishedLists
from scoring.delivery.secrets import read_secret
from spark.rows import Rows
from storage import file_io

log = logging.getLogger("nightrank")

IN_PROCESS = True
_PREFIX = re.compile(r"[A-Za-z0-9_.:{}-]{1,100}")


class Settings(SinkSettings):
    """Lists of users in Redis, for programs that look up one user at a time.

    Readers see all new lists of a delivery at the same moment.

    With `features`, the sink also delivers the features of users and items, which readers see at the same
    moment, too.
    """

    url: str = Field(
        description="redis://host:port/database, or rediss://… for TLS, without user and password."
    )
    user: Secret | None = Field(
        default=None, description="Where to read the user's name. Null: the server's default user."
    )
    password: Secret | None = Field(
        default=None, description="Where to read the password. Null: log in without a password."
    )
    ca_file: str | None = Field(
        default=None,
        description="File with the trusted certificates for rediss://, on all nodes. Null: the "
        "certificates of the system.",
    )
    prefix: str = Field(
        default="nightrank",
        description="Beginning of the names of all keys: letters, digits and _ . : { } -.",
    )
    ttl_hours: Annotated[float, Field(gt=0, le=24 * 365)] = Field(
        default=24.0,
        description="Number of hours until replaced lists, and lists of a killed delivery, expire. A "
        "delivery must not take longer.",
    )
    connections: PositiveInt = Field(default=8, description="Number of tasks that write at the same time.")
    features: list[Literal["users", "items"]] = Field(
        default=[],
        description="Tables of features that are delivered with the lists. `users`: the features of users. "
        "`items`: those of items.",
    )

    @field_validator("url")
    @classmethod
    def _redis(cls, value: str) -> str:
        return redis_url(value)

    @field_validator("prefix")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError("write 1 to 100 letters (A to Z), digits and _ . : { } -")
        return value


def check(sink: Settings) -> None:
    """Raises ConfigError if the sink's credentials or its file of certificates cannot be read."""
    _address(sink)


def places(sink: Settings) -> list[str]:
    """Returns the place that the sink writes: the server's address, and the prefix of the keys."""
    parts = urlsplit(sink.url)
    return [f"redis://{parts.hostname}:{parts.port or 6379}/{parts.path.strip('/') or 0} {sink.prefix}"]


def deliver(sink: Settings, lists: PublishedLists) -> Delivered:
    """Replaces the lists in the store, and the tables of `sink.features`.

    Readers see the old tables until all new tables are written and counted. Then they see all new tables at
    once. Tables with unchanged rows in the lake are not written again. If the process is killed, the store
    keeps the old tables. If the store has lists of a later date, nothing is delivered.

    Args:
        sink: the keys of the sink in `deliver.sinks`.
        lists: the published lists of the date.

    Raises:
        ConfigError: the credentials are missing, or the server rejects them.
        DataError: the lake does not have the tables of `sink.features`.
        InfrastructureError: the server cannot be reached, has too little memory, or lost keys.
    """
    address = _address(sink)
    store = OnlineStore(address, sink.prefix, max(1, round(sink.ttl_hours * 3600)), sink.connections)
    with redis_errors(address), address.client() as client:
        current = store.current(client)
        if current is not None and current.date > lists.run_date:
            return _too_old(sink, lists)
        known, tables, written = tables_of(current), {}, {}
        for source, read in _sources(sink, lists):
            table = known.get(source.name)
            is_same = table is not None and table.digest == source.digest
            if table is None or not is_same or not store.is_complete(client, source.name, table):
                table = written[source.name] = store.write(client, source, read())
            tables[source.name] = table
        facts = lists.manifest.facts
        versions = str(facts["model_version"]), str(facts["workflow_version"])
        variants = {
            name: {version: str(variant[version]) for version in ("model_version", "workflow_version")}
            for name, variant in (facts.get("experiment") or {}).get("variants", {}).items()
        }
        new = Pointer(lists.run_date, *versions, file_io.utc_now(), tables, variants)
        unchanged = current is not None and (current.date, dict(known)) == (new.date, tables)
        if not unchanged and not store.switch(client, new):
            return _too_old(sink, lists)
    return Delivered(_target(sink), lists.manifest.rows, lists.manifest.rows if LISTS in written else 0)


def erase(sink: Settings, request: EraseRequest) -> Erased:
    """Removes the lists and features of users, also from buckets that readers no longer use.

    Raises:
        ConfigError: the credentials are missing, or the server rejects them.
        InfrastructureError: the server cannot be reached.
    """
    address = _address(sink)
    store = OnlineStore(address, sink.prefix, max(1, round(sink.ttl_hours * 3600)), sink.connections)
    with redis_errors(address), address.client() as client:
        return Erased(_target(sink), erase_users(store, client, request))


def _sources(sink: Settings, lists: PublishedLists) -> Iterator[tuple[Source, Callable[[], Rows]]]:
    """Yields the tables to deliver, each with a function that reads its rows."""
    manifest = lists.manifest
    yield Source(LISTS, "user_id", ("position",), manifest.digest, lists.users, ()), lambda: lists.rows
    for name in dict.fromkeys(sink.features):
        table = lists.open_features[name]()
        # The sort is stable: the key becomes the first column, and the other columns keep their order.
        columns = tuple(sorted(table.manifest.schema, key=lambda column: column[0] != table.key))
        yield Source(name, table.key, (), table.manifest.digest, table.manifest.rows, columns), table.read


def _address(sink: Settings) -> RedisAddress:
    """Returns the address of the server, with the user and the password."""
    user = None if sink.user is None else read_secret(sink.name, "user", sink.user)
    password = None if sink.password is None else read_secret(sink.name, "password", sink.password)
    if sink.ca_file is not None and not os.path.isfile(os.path.expanduser(sink.ca_file)):
        raise ConfigError(
            f"deliver.sinks: ca_file={sink.ca_file} of {sink.name} does not exist", "correct the path"
        )
    return RedisAddress(sink.url, user, password, sink.ca_file)


def _too_old(sink: Settings, lists: PublishedLists) -> Delivered:
    log.warning(
        "%s has lists of a later date, so the lists of %s are not delivered", sink.name, lists.run_date
    )
    return Delivered(_target(sink), 0, 0)


def _target(sink: Settings) -> str:
    return f"{sink.url} {sink.prefix}"
