"""Reads user names and passwords from environment variables or files. The program never logs these values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from conf.errors import ConfigError
from conf.types import Secret


@dataclass(frozen=True)
class Credentials:
    """A user name and a password. `repr` does not show them."""

    user: str = field(repr=False)
    password: str = field(repr=False)


def read_credentials(sink: str, user: Secret, password: Secret) -> Credentials:
    """Reads the user name and the password of the sink with this name. Raises the errors of `read_secret`."""
    return Credentials(read_secret(sink, "user", user), read_secret(sink, "password", password))


def read_secret(sink: str, which: str, secret: Secret) -> str:
    """Reads one secret of a sink from its environment variable or file.

    Args:
        sink: the name of the sink, for error messages.
        which: the key of the secret in the settings of the sink, such as `password`.
        secret: where to read it.

    Raises:
        ConfigError: the secret is not in the environment variable or file that the configuration names. The
            message names this variable or file.
    """
    where = f"deliver.sinks: the {which} of {sink}"
    if secret.env is not None:
        value = os.environ.get(secret.env)
        if not value:
            raise ConfigError(
                f"{where} must be in the environment variable {secret.env}, which is not set",
                f"export {secret.env} in the environment of the process that runs the job (with Spark: the "
                "driver)",
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
        raise ConfigError(f"{where} must be in {path}, which is empty", f"write the {which} into this file")
    return value
