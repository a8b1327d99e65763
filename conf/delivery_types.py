"""The typed configuration of what happens to ranked lists: business rules, limits that stop a publish, sinks."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from conf.names import LakeRoot, PlainText, RawLocation
from conf.raw_types import PositiveInt, Seed, Share, Strict

# Leaves room for what the tables beside it add to the name; PostgreSQL cuts names at 63 bytes without a word.
_TABLE = re.compile(r"([a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,29}")
_PASSWORD_IN_URL = re.compile(r"[?&]\w*(user|password|pwd)=|//[^/]*@", re.IGNORECASE)
_MOST_LOG_ODDS = 50  # moves any float32 probability past any other


class Attribute(Strict):
    """An attribute of items from a table of one's own: one row an item, `key` its id as in the log, `column` the value.

    `path` names one file or a folder of files and may hold `{data}`, `{lake}` and `{date}`. A `csv` has a header. An item
    that the table does not have, or whose value is null, has no value of the attribute, and no rule on it applies.
    """

    path: RawLocation
    format: Literal["parquet", "csv"]
    key: PlainText
    column: PlainText


class Boost(Strict):
    """Moves items up or down by the value of an attribute.

    `by: factor` multiplies the probability for the ranking; `by: log_odds` adds to its log-odds. A value that is not
    named stays where it is. The published score stays the model's probability.
    """

    attribute: str
    by: Literal["factor", "log_odds"] = "factor"
    values: Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _amounts_are_usable(self) -> Boost:
        wrong = {name: value for name, value in self.values.items() if value <= 0}
        if self.by == "factor" and wrong:
            raise ValueError(f"factors must be above 0: {wrong}; a factor below 1 moves items down")
        wrong = {name: value for name, value in self.values.items() if abs(value) > _MOST_LOG_ODDS}
        if self.by == "log_odds" and wrong:
            raise ValueError(f"log-odds lie within ±{_MOST_LOG_ODDS}: {wrong}")
        return self


class MaxPerCategory(Strict):
    """At most `max` items of a list have the same value of an attribute."""

    attribute: str
    max: PositiveInt


class Exploration(Strict):
    """The last ceil(share × k) positions go to items drawn from the user's other candidates.

    The draw is a hash of seed, user, item and run date: a rerun draws the same, another day does not.
    """

    share: Annotated[float, Field(gt=0.0, le=1.0)]
    seed: Seed = 0


class ListRules(Strict):
    """Business rules after ranking, in this order: boost, maximum per category, exploration."""

    attributes: dict[str, Attribute] = {}
    boost: Boost | None = None
    max_per_category: MaxPerCategory | None = None
    exploration: Exploration | None = None

    @model_validator(mode="after")
    def _attributes_are_used(self) -> ListRules:
        used = {rule.attribute for rule in (self.boost, self.max_per_category) if rule is not None}
        if unknown := sorted(used - set(self.attributes)):
            raise ValueError(f"attributes {unknown} are not defined; known: {sorted(self.attributes)}")
        if idle := sorted(set(self.attributes) - used):
            raise ValueError(f"attributes {idle} are used by no rule")
        if not used and self.exploration is None:
            raise ValueError(
                "no rule is given: name boost, max_per_category or exploration, or leave rules out"
            )
        return self


Limit = Annotated[float, Field(ge=0)] | None


class Stop(Strict):
    """How far the lists of a day may be from the last published ones; past a limit they are not published.

    `max_churn`: mean share of a user's items that were not in the user's list before. `min_coverage`: share of the items
    that stand in a list. `max_cold_share`: share of list entries whose item nobody clicked in train. `max_score_psi`:
    population stability index of the scores, where it is more than chance gives. `max_users_lost_share`: share of the
    users of before that have no list now. Null looks at nothing.
    """

    max_churn: Share | None = None
    min_coverage: Share | None = None
    max_cold_share: Share | None = None
    max_score_psi: Limit = None
    max_users_lost_share: Share | None = None


class Secret(Strict):
    """Where a name or password stands: in an environment variable of the driver, or as the text of a file."""

    env: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError("name one of env and file")
        return self


class JdbcSink(Strict):
    """A PostgreSQL table of lists, replaced one date at a time in one transaction.

    `url`: jdbc:postgresql://host:port/database, without user or password. `table` is made if it is not there, its schema
    is not. `keep_dates`: how many dates the table holds; older ones are deleted. `connections`: tasks that write at
    once. `driver_jar`: the driver's jar, where it is not on Spark's class path already (--packages).
    """

    kind: Literal["jdbc"]
    name: PlainText
    url: str
    table: str
    user: Secret
    password: Secret
    keep_dates: PositiveInt = 2
    connections: PositiveInt = 8
    driver_jar: str | None = None

    @field_validator("url")
    @classmethod
    def _postgresql(cls, value: str) -> str:
        if not value.startswith("jdbc:postgresql:"):
            raise ValueError("only jdbc:postgresql: URLs are known")
        return value

    @field_validator("table")
    @classmethod
    def _identifier(cls, value: str) -> str:
        if not _TABLE.fullmatch(value):
            raise ValueError(
                "a table is [schema.]name of lower-case letters, digits and _, the name of 30 at most"
            )
        return value


class JsonLinesSink(Strict):
    """Files of one JSON object a user, with a manifest at `path`/dt=… as the lake's tables have; the files lie in `_data` beside
    the last folder of `path`.
    """

    kind: Literal["json_lines"]
    name: PlainText
    path: LakeRoot
    compression: Literal["none", "gzip"] = "gzip"
    users_per_file: PositiveInt = 1_000_000

    @field_validator("path")
    @classmethod
    def _has_a_folder_above(cls, path: str) -> str:
        scheme, _, inner = path.rpartition("://")
        parts = inner.rstrip("/").split("/")
        bucket = scheme not in ("", "file")
        if parts[-1] in ("", ".", "..") or ".." in parts or (bucket and len(parts) < 2):
            raise ValueError(
                f"{path!r} must end in a folder's name, without `..` and below the bucket: data files lie beside it, in _data"
            )
        return path


Sink = Annotated[JdbcSink | JsonLinesSink, Field(discriminator="kind")]


class Deliver(Strict):
    """Where deliver_recommendations copies the published lists to, in this order."""

    sinks: list[Sink] = []

    @model_validator(mode="before")
    @classmethod
    def _no_password_in_a_url(cls, values: object) -> object:
        """Before anything else, and without the URL: what is refused here must not be printed by the refusal."""
        sinks = values.get("sinks") if isinstance(values, dict) else None
        for sink in sinks if isinstance(sinks, list) else []:
            if isinstance(sink, dict) and _PASSWORD_IN_URL.search(str(sink.get("url", ""))):
                raise ValueError(
                    "the url of a sink holds a user or a password: name the environment variable or the file "
                    "that has them under `user` and `password`"
                )
        return values

    @model_validator(mode="after")
    def _names_differ(self) -> Deliver:
        names = [each.name for each in self.sinks]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"sinks share the names {repeated}")
        return self
