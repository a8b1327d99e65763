"""Reads user names and passwords from environment variables or files. They are never logged."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from conf.errors import ConfigError
from conf.types import JdbcSink, Secret


@dataclass(frozen=True)
class Credentials:
    """A user name and a password. `repr` shows neither."""

    user: str = field(repr=False)
    password: str = field(repr=False)


def read_credentials(sink: JdbcSink) -> Credentials:
    """Reads the user name and the password of a sink.

    Raises:
        ConfigError: the user or the password is not in the environment variable or file that the
            configuration names. The message names this variable or file.
    """
    return Credentials(_read(sink, "user", sink.user), _read(sink, "password", sink.password))


def _read(sink: JdbcSink, which: str, secret: Secret) -> str:
    """Reads one secret from its environment variable or file."""
    where = f"deliver.sinks: the {which} of {sink.name}"
    if secret.env is not None:
        value = os.environ.get(secret.env)
        if not value:
            raise ConfigError(
                f"{where} should be in the environment variable {secret.env}, which is not set",
                f"export {secret.env} in the environment of Spark's driver",
            )
        return value
    path = str(secret.file)
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            value = file.read().strip()
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be read from {path}: {error.strerror}", f"correct `{which}.file` of this sink"
        ) from error
    if not value:
        raise ConfigError(f"{where} should be in {path}, which is empty", f"write the {which} into this file")
    return value
