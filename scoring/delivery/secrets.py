"""Names and passwords from where the configuration says they are; they enter no log, manifest or error."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from conf.errors import ConfigError
from conf.types import JdbcSink, Secret


@dataclass(frozen=True)
class Credentials:
    """A user and a password, neither of which is ever printed."""

    user: str = field(repr=False)
    password: str = field(repr=False)


def read_credentials(sink: JdbcSink) -> Credentials:
    """Raises ConfigError where one of both is not where it should be; names the place."""
    return Credentials(_read(sink, "user", sink.user), _read(sink, "password", sink.password))


def _read(sink: JdbcSink, which: str, secret: Secret) -> str:
    where = f"deliver.sinks: the {which} of {sink.name}"
    if secret.env is not None:
        value = os.environ.get(secret.env)
        if not value:
            raise ConfigError(
                f"{where} should be in the environment variable {secret.env}, which is not set",
                f"export {secret.env} where the driver runs",
            )
        return value
    path = str(secret.file)
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            value = file.read().strip()
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be read from {path}: {error.strerror}", "correct the path"
        ) from error
    if not value:
        raise ConfigError(f"{where} should be in {path}, which is empty", f"write the {which} into it")
    return value
