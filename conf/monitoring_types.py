"""The typed configuration of monitoring: Prometheus metrics and the price of a run."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from conf.raw_types import Strict

_HTTP = re.compile(r"https?://[^/?#@]+(/[^?#@]*)?")


class Watch(Strict):
    """Prometheus metrics and the price of a run (docs/operations.md).

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
