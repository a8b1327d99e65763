"""What the running job reads and publishes, told as OpenLineage tells it: facts for manifests and for the record of a run.

A job begins a run; whatever reads or publishes a partition in that process says so here. Where no run was begun (tests, workers,
a notebook) nothing is kept. A dataset is one partition: its namespace and name follow OpenLineage's rules for file paths, its
version is the manifest's digest.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

PRODUCER = "urn:nightrank"
_SPEC = "https://openlineage.io/spec"
SCHEMA_URL = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
# Facet → where the version that is written here is defined.
FACETS: Mapping[str, str] = {
    "version": f"{_SPEC}/facets/1-0-0/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet",
    "schema": f"{_SPEC}/facets/1-0-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet",
    "dataQualityMetrics": f"{_SPEC}/facets/1-0-2/DataQualityMetricsInputDatasetFacet.json"
    "#/$defs/DataQualityMetricsInputDatasetFacet",
    "outputStatistics": f"{_SPEC}/1-0-1/OutputStatisticsOutputDatasetFacet.json"
    "#/$defs/OutputStatisticsOutputDatasetFacet",
    "nominalTime": f"{_SPEC}/1-0-1/NominalTimeRunFacet.json#/$defs/NominalTimeRunFacet",
    "errorMessage": f"{_SPEC}/facets/1-0-0/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
}


@dataclass(frozen=True)
class Dataset:
    """One partition, model or raw day as it was read or published; None where a figure is not known.

    Attributes:
        path: its folder, or the pattern of its files.
        version: digest of the content.
        schema: (column, type) in order.
    """

    path: str
    version: str
    rows: int | None = None
    bytes: int | None = None
    schema: Sequence[tuple[str, str]] = ()


@dataclass
class Run:
    """One run of one job: its identity, and the datasets it has read and published so far, by path.

    `parts`: combined digest → the digests it was made of.
    """

    job: str
    namespace: str
    run_date: str
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    read: dict[str, Dataset] = field(default_factory=dict)
    published: dict[str, Dataset] = field(default_factory=dict)
    parts: dict[str, frozenset[str]] = field(default_factory=dict)

    def event(
        self,
        kind: str,
        time: str,
        inputs: Iterable[Dataset],
        outputs: Iterable[Dataset],
        error: str | None = None,
    ) -> dict[str, Any]:
        """A RunEvent. `kind`: OTHER while the run goes on, COMPLETE or FAIL at its end; `time`: UTC, ISO 8601."""
        run = {"nominalTime": _facet("nominalTime", nominalStartTime=f"{self.run_date}T00:00:00Z")}
        if error is not None:
            run["errorMessage"] = _facet("errorMessage", message=error, programmingLanguage="PYTHON")
        return {
            "eventType": kind,
            "eventTime": time,
            "producer": PRODUCER,
            "schemaURL": SCHEMA_URL,
            "run": {"runId": self.run_id, "facets": run},
            "job": {"namespace": self.namespace, "name": self.job, "facets": {}},
            "inputs": [_input(each) for each in inputs],
            "outputs": [_output(each) for each in outputs],
        }

    def publishes(self, dataset: Dataset, digests: Iterable[str], time: str) -> dict[str, Any]:
        """Notes an output, and gives the event of its publication.

        Its inputs are those datasets of this run whose version stands among `digests`, the manifest's own inputs; where none
        does, everything that the run has read.
        """
        wanted = set(digests)
        wanted |= {part for digest in wanted for part in self.parts.get(digest, ())}
        known = {**self.read, **self.published}
        inputs = [each for path, each in known.items() if each.version in wanted and path != dataset.path]
        self.published[dataset.path] = dataset
        return self.event("OTHER", time, inputs or self.inputs(), [dataset])

    def inputs(self) -> list[Dataset]:
        """What was read and not published by this very run: a job looks at the partition that it replaces."""
        return [each for path, each in self.read.items() if path not in self.published]

    def ended(self, time: str, error: str | None) -> dict[str, Any]:
        """The event that ends the run, with all its inputs and outputs."""
        kind = "COMPLETE" if error is None else "FAIL"
        return self.event(kind, time, self.inputs(), self.published.values(), error)


_current: Run | None = None


def begin(run: Run | None) -> None:
    """From now on this process works for `run`; None ends that."""
    global _current
    _current = run


def current() -> Run | None:
    return _current


@contextmanager
def paused() -> Iterator[None]:
    """What is read in here is no input of the run: it is looked at, and nothing is made of it."""
    run = _current
    begin(None)
    try:
        yield
    finally:
        begin(run)


def reads(path: str, version: str, rows: int | None = None, size: int | None = None) -> None:
    """Notes an input of the current run, if there is one."""
    if _current is not None:
        _current.read[path] = Dataset(path, version, rows, size)


def combines(digest: str, parts: Iterable[str]) -> None:
    """Notes of which digests another one was made; of a part such as `train 0123…` the last word is the digest."""
    if _current is not None:
        _current.parts[digest] = frozenset(part.rsplit(" ", 1)[-1] for part in parts)


def writes(path: str, version: str, rows: int | None = None, size: int | None = None) -> None:
    """Notes an output that has no manifest, such as a model."""
    if _current is not None:
        _current.published[path] = Dataset(path, version, rows, size)


def dataset_name(path: str) -> tuple[str, str]:
    """(namespace, name): `file` and an absolute path, or scheme and authority, and the path below."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return "file", os.path.abspath(rest if separator else path)
    authority, _, below = rest.partition("/")
    if scheme in ("s3", "s3a"):
        return f"s3://{authority}", below
    return f"{scheme}://{authority}", f"/{below}"


def _facet(name: str, **values: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": FACETS[name], **values}


def _named(dataset: Dataset) -> dict[str, Any]:
    namespace, name = dataset_name(dataset.path)
    facets = {"version": _facet("version", datasetVersion=dataset.version)}
    if dataset.schema:
        fields = [{"name": column, "type": kind} for column, kind in dataset.schema]
        facets["schema"] = _facet("schema", fields=fields)
    return {"namespace": namespace, "name": name, "facets": facets}


def _input(dataset: Dataset) -> dict[str, Any]:
    counts = _present(rowCount=dataset.rows, bytes=dataset.bytes)
    measured = {"dataQualityMetrics": _facet("dataQualityMetrics", columnMetrics={}, **counts)}
    return {**_named(dataset), "inputFacets": measured if counts else {}}


def _output(dataset: Dataset) -> dict[str, Any]:
    counts = _present(rowCount=dataset.rows, size=dataset.bytes)
    measured = {"outputStatistics": _facet("outputStatistics", **counts)}
    return {**_named(dataset), "outputFacets": measured if dataset.rows is not None else {}}


def _present(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}
