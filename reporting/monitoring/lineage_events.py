"""Sends the OpenLineage events of a run through OpenLineage's Python client (watch.openlineage)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from conf.errors import ConfigError


class LineageSender:
    """Sends events through one transport of OpenLineage's client.

    The client also reads its own settings: the environment variables that begin with `OPENLINEAGE__`, such as
    `OPENLINEAGE__TRANSPORT__AUTH`, and the file `openlineage.yml`.

    Args:
        transport: the key `watch.openlineage`: the type of the transport and its settings.

    Raises:
        ConfigError: the transport does not exist, or it lacks a setting or a package.
    """

    def __init__(self, transport: Mapping[str, Any]) -> None:
        from openlineage.client import OpenLineageClient

        settings = {"transport": copy.deepcopy(dict(transport))}  # the client changes its argument
        try:
            self._client = OpenLineageClient(config=settings)
        except Exception as error:  # each transport raises its own types of errors
            raise ConfigError(
                f"watch.openlineage: the transport {transport['type']!r} cannot be used: "
                f"{type(error).__name__}: {error}",
                "correct the settings; OpenLineage's documentation of its Python client lists all transports",
            ) from error

    def send(self, event: Mapping[str, Any]) -> None:
        """Sends an event, and waits until the transport has accepted it.

        Args:
            event: a RunEvent as JSON values (storage/lineage.py).

        Raises:
            Exception: the transport could not send the event.
        """
        from openlineage.client import event_v2

        run, job = event["run"], event["job"]
        self._client.emit(
            event_v2.RunEvent(
                eventType=event_v2.RunState[event["eventType"]],
                eventTime=event["eventTime"],
                producer=event["producer"],
                run=event_v2.Run(runId=run["runId"], facets=dict(run["facets"])),
                job=event_v2.Job(namespace=job["namespace"], name=job["name"], facets=dict(job["facets"])),
                inputs=[event_v2.InputDataset(**dataset) for dataset in event["inputs"]],
                outputs=[event_v2.OutputDataset(**dataset) for dataset in event["outputs"]],
            )
        )

    def close(self) -> None:
        """Waits until transports that buffer events, such as Kafka's, have sent all events."""
        self._client.close(timeout=_PATIENCE_S)


_PATIENCE_S = 10.0


def check_openlineage(transport: Mapping[str, Any] | None) -> None:
    """Raises ConfigError if the transport of `watch.openlineage` cannot be used."""
    if transport is not None:
        LineageSender(transport).close()
