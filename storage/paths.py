"""Where everything lies below the lake's root. No other module builds these paths.

raw/dt=…                        raw day files of the generator
quarantine/dt=…                 rows that did not parse
value_counts/dt=…               how often each raw value occurs in a day, slice by slice
profiles/<config name>/dt=…     what a day's raw columns hold, and the values of the categorical ones
                                (profiles/<config name>/<split>/dt=… for a log cut inside one partition)
quality/<config name>/dt=…      the data report of a run date: its day against the training window
workflow/<version>/             fitted operators, feature_spec.json, vocabularies
features|users|items/<workflow version>/dt=…
datasets/dt=…                   what a run of build_features made: workflow version, days of each split
models/<name>/<version>/        weights and model.json
models/<name>/promotions/       one decision of the gate a run date
candidates|candidate_items/<workflow version>/dt=…
recommendations|scores|evaluations|measures/dt=…
list_changes/dt=…               the lists of a date beside the last published ones, also where they were held back
deliveries/dt=…                 which sinks have the lists of a date
checkpoints/<version>/          of trainings in progress
runs/dt=…                       one file an attempt of a job: how it ended, its figures, its Spark stages (reporting/monitoring)
spark-events/                   Spark's event logs, for its history server
reports/, logs/
mlflow.db                       MLflow's store, in a local lake only

A folder of a partition (`<table>/dt=…`) holds its manifest and, on a local file system, one hard link a published file: what readers see
that list folders. The files themselves lie in a folder of their own for all attempts to write them, which no reader of a table lists:

_data/<table>/dt=…/<attempt>/   data files; the manifest names them
_data/<table>/_delta_log/       where the lake is on an object store: the Delta log by which others read the table
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage import file_io
from storage.lineage import NOT_RECORDED, LineageRecorder

DATA = "_data"
_UP = "../"


@dataclass(frozen=True)
class Partition:
    """One date of one table: the unit that is replaced. `path` is its folder, `dt` an ISO date.

    Attributes:
        depth: how many folders `path` lies below the one that holds `_data`: two for `<lake>/<table>/dt=…`.
        recorder: receives what is read and published here. It does not count for equality and hash.
    """

    table: str
    dt: str
    path: str
    depth: int = 2
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)

    @property
    def root(self) -> str:
        """The folder that holds the table's folder, and `_data`."""
        return self.file(f"{_UP * self.depth}.")

    @property
    def data(self) -> str:
        """The folder of its data files, named as manifests name files: relative to the partition's folder."""
        below = "/".join(self.path.split("/")[-self.depth :])
        return f"{_UP * self.depth}{DATA}/{below}"

    def file(self, name: str) -> str:
        """Full path of what a manifest names: relative to the partition's folder, which `../` leaves."""
        folder = self.path
        while name.startswith(_UP):
            folder, name = folder.rpartition("/")[0] if "/" in folder else ".", name.removeprefix(_UP)
        return f"{folder}/{name}"


@dataclass(frozen=True)
class Table:
    """A table kept by date. `name` is its path below the root."""

    name: str
    path: str
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)

    def partition(self, dt: str) -> Partition:
        """The partition of one date."""
        depth = self.name.count("/") + 2
        return Partition(self.name, dt, f"{self.path}/dt={dt}", depth, self.recorder)


@dataclass(frozen=True)
class Lake:
    """The tables below one root (a local path or a URI).

    `recorder` receives what is read and published in these tables. It does not count for equality and hash.
    """

    root: str
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)

    def _table(self, *parts: str) -> Table:
        name = "/".join(parts)
        return Table(name, f"{self.root.rstrip('/')}/{name}", self.recorder)

    @property
    def raw(self) -> Table:
        return self._table("raw")

    @property
    def quarantine(self) -> Table:
        return self._table("quarantine")

    def profiles(self, config_name: str, split: str | None = None) -> Table:
        """Of days; of one split, for a log that is cut inside its one partition."""
        return self._table("profiles", config_name, *([split] if split else []))

    def quality(self, config_name: str) -> Table:
        return self._table("quality", config_name)

    @property
    def value_counts(self) -> Table:
        return self._table("value_counts")

    @property
    def datasets(self) -> Table:
        return self._table("datasets")

    @property
    def recommendations(self) -> Table:
        return self._table("recommendations")

    @property
    def list_changes(self) -> Table:
        """Of score_daily: the lists of a date against the last published ones."""
        return self._table("list_changes")

    @property
    def deliveries(self) -> Table:
        """Of deliver_recommendations: which sinks have the lists of a date."""
        return self._table("deliveries")

    @property
    def scores(self) -> Table:
        return self._table("scores")

    @property
    def evaluations(self) -> Table:
        """Of evaluate_model: champion against challenger."""
        return self._table("evaluations")

    @property
    def measures(self) -> Table:
        """Of measure_recommendations: lists of a date against the clicks they were made for."""
        return self._table("measures")

    def features(self, workflow_version: str) -> Table:
        return self._table("features", workflow_version)

    def users(self, workflow_version: str) -> Table:
        return self._table("users", workflow_version)

    def items(self, workflow_version: str) -> Table:
        return self._table("items", workflow_version)

    def candidates(self, workflow_version: str) -> Table:
        return self._table("candidates", workflow_version)

    def candidate_items(self, workflow_version: str) -> Table:
        return self._table("candidate_items", workflow_version)

    def workflow(self, version: str) -> str:
        return self._table("workflow", version).path

    def feature_spec(self, workflow_version: str) -> str:
        """The spec of a workflow version: its `feature_spec.json`, which stands beside the feature table too."""
        return f"{self.workflow(workflow_version)}/feature_spec.json"

    def models(self, name: str) -> str:
        return self._table("models", name).path

    def checkpoints(self, version: str) -> str:
        return self._table("checkpoints", version).path

    def report(self, dt: str) -> str:
        return f"{self._table('reports').path}/{dt}.html"

    @property
    def logs(self) -> str:
        return self._table("logs").path

    @property
    def runs(self) -> Table:
        """Of every job: one file an attempt, never replaced. The files are rows; no manifest names them."""
        return self._table("runs")

    @property
    def event_logs(self) -> str:
        return self._table("spark-events").path

    @property
    def mlflow_uri(self) -> str | None:
        """MLflow's own store in the lake. None on an object store, where SQLite cannot keep a file."""
        if not file_io.is_local(self.root):
            return None
        return f"sqlite:///{file_io.filesystem(self.root)[1]}/mlflow.db"
