"""The typed configuration of the delivery of lists: limits above which lists are not published, and sinks."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from conf.names import LakeRoot, PlainText
from conf.raw_types import PositiveInt, Share, Strict

# PostgreSQL silently truncates names to 63 bytes. The limit leaves room for suffixes of additional tables.
_TABLE = re.compile(r"([a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,29}")
_PASSWORD_IN_URL = re.compile(r"[?&]\w*(user|password|pwd)=|//[^/]*@", re.IGNORECASE)
Limit = Annotated[float, Field(ge=0)] | None


class Stop(Strict):
    """Limits on the new lists and on their differences from the last published lists.

    If the new lists exceed a limit, they are not published.
    """

    max_churn: Share | None = Field(
        default=None,
        description="Largest share of the items in a user's list that were not in the user's last published "
        "list, averaged over users. Null: no limit.",
    )
    min_coverage: Share | None = Field(
        default=None,
        description="Smallest share of all items that occur in at least one list. Null: no limit.",
    )
    max_cold_share: Share | None = Field(
        default=None,
        description="Largest share of list entries whose item has no click in the train split. Null: no "
        "limit.",
    )
    max_score_psi: Limit = Field(
        default=None,
        description="Largest population stability index of the scores against those of the last published "
        "lists. An index that can be due to chance is ignored. Null: no limit.",
    )
    max_users_lost_share: Share | None = Field(
        default=None,
        description="Largest share of the users in the last published lists that have no new list. Null: no "
        "limit.",
    )


class Secret(Strict):
    """A user name or a password, read from an environment variable of the driver or from a file.

    Exactly one of `env` and `file` must be given.
    """

    env: str | None = Field(
        default=None, description="Name of the environment variable. Null: `file` is used instead."
    )
    file: str | None = Field(
        default=None,
        description="Path of a file that contains only the user name or the password. Null: `env` is used "
        "instead.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError("set either `env` or `file`, not both")
        return self


class JdbcSink(Strict):
    """A PostgreSQL table of lists. Each delivery replaces the rows of one date in one transaction."""

    kind: Literal["jdbc"] = Field(description="A PostgreSQL table.")
    name: PlainText = Field(description="Name of the sink in logs and manifests.")
    url: str = Field(description="jdbc:postgresql://host:port/database, without user and password.")
    table: str = Field(
        description="Name of the table, as table or schema.table. If the table is missing, it is created; "
        "the schema must exist."
    )
    user: Secret = Field(description="Where to read the name of the database user.")
    password: Secret = Field(description="Where to read the password.")
    keep_dates: PositiveInt = Field(
        default=2, description="Number of dates that the table keeps. The lists of older dates are deleted."
    )
    connections: PositiveInt = Field(default=8, description="Number of tasks that write at the same time.")
    driver_jar: str | None = Field(
        default=None,
        description="Path of the jar of the JDBC driver. Null: the driver is already on Spark's class path, "
        "for example by the option --packages of spark-submit.",
    )

    @field_validator("url")
    @classmethod
    def _postgresql(cls, value: str) -> str:
        if not value.startswith("jdbc:postgresql:"):
            raise ValueError("it must begin with jdbc:postgresql:")
        return value

    @field_validator("table")
    @classmethod
    def _identifier(cls, value: str) -> str:
        if not _TABLE.fullmatch(value):
            raise ValueError(
                "write a table as name or schema.name, with lower-case letters, digits and _; "
                "the name may have at most 30 characters"
            )
        return value


class JsonLinesSink(Strict):
    """Files with one JSON object per user. A manifest lists the published files, as in tables of the lake.

    The manifest of a date is in the folder `path`/dt=…. The files themselves are in a folder `_data` next to
    the last folder of `path`.
    """

    kind: Literal["json_lines"] = Field(description="Files of JSON lines.")
    name: PlainText = Field(description="Name of the sink in logs and manifests.")
    path: LakeRoot = Field(description="Folder of the lists: a local path or a URI.")
    compression: Literal["none", "gzip"] = Field(default="gzip", description="Compression of the files.")
    users_per_file: PositiveInt = Field(default=1_000_000, description="Largest number of users in a file.")

    @field_validator("path")
    @classmethod
    def _has_a_folder_above(cls, path: str) -> str:
        scheme, _, inner = path.rpartition("://")
        parts = inner.rstrip("/").split("/")
        bucket = scheme not in ("", "file")
        if parts[-1] in ("", ".", "..") or ".." in parts or (bucket and len(parts) < 2):
            raise ValueError(
                f"{path!r} must end with the name of a folder, without `..`, and be below a bucket: "
                "data files are stored next to that folder, in _data"
            )
        return path


Sink = Annotated[JdbcSink | JsonLinesSink, Field(discriminator="kind")]


class Deliver(Strict):
    """The sinks to which deliver_recommendations copies the published lists."""

    sinks: list[Sink] = Field(default=[], description="The sinks, in order. Empty: none.")

    @model_validator(mode="before")
    @classmethod
    def _no_password_in_a_url(cls, values: object) -> object:
        """Runs before all other checks, because their messages would print the URL with its password."""
        sinks = values.get("sinks") if isinstance(values, dict) else None
        for sink in sinks if isinstance(sinks, list) else []:
            if isinstance(sink, dict) and _PASSWORD_IN_URL.search(str(sink.get("url", ""))):
                raise ValueError(
                    "the url of a sink must not contain a user or a password: under `user` and `password`, "
                    "name the environment variable or the file that contains them"
                )
        return values

    @model_validator(mode="after")
    def _names_differ(self) -> Deliver:
        names = [sink.name for sink in self.sinks]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"several sinks have the same name: {repeated}; give each sink another name")
        return self
