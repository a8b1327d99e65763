"""The typed configuration of monitoring: Prometheus metrics, lineage events and the price of a run."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from conf.raw_types import Strict

_HTTP = re.compile(r"https?://[^/?#@]+(/[^?#@]*)?")


class Watch(Strict):
    """Prometheus metrics, lineage events and the price of a run (docs/operations.md).

    Run records in `<lake>/runs/dt=…` and Spark's event logs are written without any of these keys.
    """

    textfile_folder: str | None = Field(
        default=None,
        description="Local folder of node_exporter's textfile collector. At its end, each job atomically "
        "replaces a file with its metrics in this folder. Null: no file.",
    )
    push_gateway: str | None = Field(
        default=None,
        description="Address of a Prometheus push gateway, http(s)://host:port. Each job also sends its "
        "metrics there. Null: metrics are not sent.",
    )
    openlineage: dict[str, Any] | None = Field(
        default=None,
        description="Where each job sends OpenLineage events of its start and its end: a transport of "
        "OpenLineage's Python client, such as `{type: http, url: http://marquez:5000}`. Null: events are "
        "only in the run record.",
    )
    core_hour_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Price of one hour of one core, in `currency`. Null: the cost of a run is reported only "
        "in core seconds.",
    )
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = Field(
        default="EUR", description="Currency of `core_hour_price`: three capital letters."
    )

    @field_validator("textfile_folder")
    @classmethod
    def _local(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            raise ValueError("it must be the path of a local folder, because node_exporter reads it")
        return value

    @field_validator("openlineage")
    @classmethod
    def _has_a_type_and_no_secret(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and not isinstance(value.get("type"), str):
            raise ValueError("it must have the key `type`, such as http, kafka, file or console")
        if value is not None and "auth" in value:
            raise ValueError(
                "the configuration must not contain credentials; set the environment variable "
                "OPENLINEAGE__TRANSPORT__AUTH"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _gateway_is_an_address(cls, values: object) -> object:
        """Runs before all other checks, because their messages would print an address with its password."""
        address = values.get("push_gateway") if isinstance(values, dict) else None
        if address is not None and not _HTTP.fullmatch(str(address)):
            raise ValueError(
                "push_gateway must be http(s)://host:port, without user, password, query or fragment"
            )
        return values
