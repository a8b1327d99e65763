"""Records which datasets a run reads and publishes, for manifests and for the run record.

`LakePaths`, `Table` and `Partition` hold a recorder. Functions that read or publish a partition report to the
recorder of that partition. Functions that read other data, such as a raw log or a model, take a recorder as
an argument. The recorder of a job is a `RunLineage`. In workers, notebooks and tests, the recorder is
`NOT_RECORDED`, which discards everything.

Events follow OpenLineage. A dataset is a partition, a model or a day of a raw log. Its namespace and name
follow OpenLineage's rules for file paths. Its version is a digest: for a partition, the digest of its
manifest.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PRODUCER = "urn:nightrank"
_SPEC = "https://openlineage.io/spec"
SCHEMA_URL = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
# Maps each facet to the URL of the schema version that this module writes.
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
class DatasetVersion:
    """One version of a dataset (a partition, a model or a day of a raw log) that a run read or published.

    Attributes:
        path: the folder, or the glob pattern of the raw files.
        version: digest of the content.
        rows, bytes: number of rows and bytes; None if the number is not known.
        schema: (name, type) of each column, in the order of the columns.
    """

    path: str
    version: str
    rows: int | None = None
    bytes: int | None = None
    schema: Sequence[tuple[str, str]] = ()


class LineageRecorder:
    """A recorder of the data that a run reads and publishes.

    This class discards all records. The subclass `RunLineage` keeps them.
    """

    def record_read(
        self, path: str, version: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Records an input of the run."""

    def record_write(
        self, path: str, version: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Records an output that has no manifest, such as a model."""

    def record_combined(self, digest: str, parts: Iterable[str]) -> None:
        """Records that a digest was computed from other digests.

        Args:
            digest: the computed digest.
            parts: the other digests. Each part may have words before its digest, as in `train 0123…`.
        """

    def record_publication(
        self, dataset: DatasetVersion, input_digests: Iterable[str], time: str
    ) -> Mapping[str, Any]:
        """Records an output that has a manifest.

        Returns the OpenLineage event of the publication; empty if no run is recorded.
        """
        return {}


NOT_RECORDED = LineageRecorder()


@dataclass(eq=False)
class RunLineage(LineageRecorder):
    """One run of one job: its identity, and the datasets that the run has read and published so far, by path.

    A copy that is sent to another process records nothing, because the driver itself records what its workers
    read.

    Attributes:
        inputs, outputs: map the path of each dataset to the version that the run has read or published.
        combined: maps each digest that was computed from other digests to these other digests.
    """

    job: str
    namespace: str
    run_date: str
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    inputs: dict[str, DatasetVersion] = field(default_factory=dict)
    outputs: dict[str, DatasetVersion] = field(default_factory=dict)
    combined: dict[str, frozenset[str]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[LineageRecorder], tuple[()]]:
        """Pickles this object as a recorder that discards everything."""
        return LineageRecorder, ()

    def record_read(
        self, path: str, version: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Records an input of the run."""
        self.inputs[path] = DatasetVersion(path, version, rows, size_bytes)

    def record_write(
        self, path: str, version: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Records an output that has no manifest."""
        self.outputs[path] = DatasetVersion(path, version, rows, size_bytes)

    def record_combined(self, digest: str, parts: Iterable[str]) -> None:
        """Records that a digest was computed from other digests, as in the base class."""
        self.combined[digest] = frozenset(part.rsplit(" ", 1)[-1] for part in parts)

    def record_publication(
        self, dataset: DatasetVersion, input_digests: Iterable[str], time: str
    ) -> Mapping[str, Any]:
        """Records an output and returns the event of its publication.

        `input_digests` are the digests that the manifest of the output lists as inputs. The inputs in the
        event are the datasets of this run that have one of these digests. If there is no such dataset, the
        inputs are all datasets that the run has read and has not published itself.
        """
        digests = set(input_digests)
        digests |= {part for digest in digests for part in self.combined.get(digest, ())}
        datasets = {**self.inputs, **self.outputs}
        inputs = [used for path, used in datasets.items() if used.version in digests and path != dataset.path]
        self.outputs[dataset.path] = dataset
        return self._event("OTHER", time, inputs or self.external_inputs(), [dataset])

    def external_inputs(self) -> list[DatasetVersion]:
        """Returns the inputs that this run did not publish itself.

        A job also reads the partitions that it replaces, so some of its inputs are also its outputs.
        """
        return [dataset for path, dataset in self.inputs.items() if path not in self.outputs]

    def start_event(self, time: str) -> dict[str, Any]:
        """Returns the event for the start of the run, without datasets. `time` is UTC, ISO 8601."""
        return self._event("START", time, (), ())

    def end_event(self, time: str, error: str | None) -> dict[str, Any]:
        """Returns the event for the end of the run, with all inputs and outputs. `time` is UTC, ISO 8601."""
        kind = "COMPLETE" if error is None else "FAIL"
        return self._event(kind, time, self.external_inputs(), self.outputs.values(), error)

    def _event(
        self,
        kind: str,
        time: str,
        inputs: Iterable[DatasetVersion],
        outputs: Iterable[DatasetVersion],
        error: str | None = None,
    ) -> dict[str, Any]:
        """Builds a RunEvent. `kind` is START, OTHER during the run, and COMPLETE or FAIL at its end."""
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
            "inputs": [_input(dataset) for dataset in inputs],
            "outputs": [_output(dataset) for dataset in outputs],
        }


def dataset_name(path: str) -> tuple[str, str]:
    """Returns the namespace and the name that OpenLineage gives to a path or URI.

    For a local path, the namespace is `file`, and the name is the absolute path. For a URI, the namespace is
    the scheme and the authority, and the name is the path.
    """
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return "file", os.path.abspath(rest if separator else path)
    authority, _, below = rest.partition("/")
    if scheme in ("s3", "s3a", "gs"):
        return f"{scheme.removesuffix('a')}://{authority}", below
    return f"{scheme}://{authority}", f"/{below}"


def _facet(name: str, **values: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": FACETS[name], **values}


def _dataset(dataset: DatasetVersion) -> dict[str, Any]:
    namespace, name = dataset_name(dataset.path)
    facets = {"version": _facet("version", datasetVersion=dataset.version)}
    if dataset.schema:
        fields = [{"name": column, "type": kind} for column, kind in dataset.schema]
        facets["schema"] = _facet("schema", fields=fields)
    return {"namespace": namespace, "name": name, "facets": facets}


def _input(dataset: DatasetVersion) -> dict[str, Any]:
    counts = _present(rowCount=dataset.rows, bytes=dataset.bytes)
    facets = {"dataQualityMetrics": _facet("dataQualityMetrics", columnMetrics={}, **counts)}
    return {**_dataset(dataset), "inputFacets": facets if counts else {}}


def _output(dataset: DatasetVersion) -> dict[str, Any]:
    counts = _present(rowCount=dataset.rows, size=dataset.bytes)
    facets = {"outputStatistics": _facet("outputStatistics", **counts)}
    return {**_dataset(dataset), "outputFacets": facets if dataset.rows is not None else {}}


def _present(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}
