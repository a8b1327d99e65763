"""The address of a server that speaks the Redis protocol, its client, and its errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from conf.errors import ConfigError, InfrastructureError, NightrankError

if TYPE_CHECKING:
    from redis import Redis

_CONNECT_TIMEOUT_S = 10
_ANSWER_TIMEOUT_S = 60
_RULE = "write redis://host:port/database, or rediss://host:port/database for TLS"


@dataclass(frozen=True)
class RedisAddress:
    """A server and how to log in to it. `repr` shows no credentials.

    Attributes:
        url: redis://host:port/database, or rediss:// for TLS.
        user, password: the credentials; None if the server asks for none.
        ca_file: file with the certificates of authorities to trust; None for those of the system.
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
    """Checks the URL of a server. Raises ValueError if it is not one, or has parts that are not supported."""
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
    """Raises a NightrankError for each error of the server or the network in the block.

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
    """Returns the NightrankError for an error of the client."""
    from redis import exceptions as e

    problem = f"{address.url}: {error or type(error).__name__}"
    if isinstance(error, e.AuthenticationError | e.AuthorizationError | e.NoPermissionError):
        return ConfigError(
            problem, "correct the user and the password, or the commands that this user may run"
        )
    if isinstance(error, e.OutOfMemoryError):
        return InfrastructureError(
            problem,
            "give the server more memory (maxmemory), or set a smaller ttl_hours: while a delivery runs, the "
            "server holds the old and the new lists. The served lists are unchanged",
        )
    return InfrastructureError(
        problem, "check that the server can be reached; a retry may help. The served lists are unchanged"
    )
