"""The typed configuration of the delivery of lists: limits above which lists are not published, and sinks."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from conf.names import PlainText
from conf.raw_types import Share, Strict

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


class SinkSettings(Strict):
    """Base of the settings of all sinks."""

    kind: str = Field(description="Name of the sink's module in scoring/delivery/sinks, or of a plug-in.")
    name: PlainText = Field(description="Name of the sink in logs and manifests.")


class SinkConfig(SinkSettings):
    """A sink and its settings.

    All keys except those below are settings of the sink (docs/delivery.md). Every job checks these settings
    when it starts (scoring/delivery/sinks).
    """

    model_config = ConfigDict(extra="allow")


class Deliver(Strict):
    """The sinks to which deliver_recommendations copies the published lists."""

    sinks: list[SinkConfig] = Field(default=[], description="The sinks, in order. Empty: none.")

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
