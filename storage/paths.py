"""The layout of a data lake, the folder or URI below which the jobs write all tables and models.

No other module builds these paths.

raw/dt=…                        click log of a day, written by generate_clicks
quarantine/dt=…                 raw rows that could not be parsed
copies/<config name>/<table>/dt=…   rows of a table of Spark's catalogue; `dt=all` if it is not read by day
typed/dt=…                      parsed rows of a day's text log (only in lakes of older releases)
prepared/<config name>/dt=…     rows of a day with histories, negatives, attributes, for the encode pass
value_counts/dt=…               counts of the raw values of a day, by file split
last_clicks/dt=…                last clicks of each user on a day, for histories (section `history`)
last_values/<config name>/dt=…   last values of each item on a day, such as prices (section `last_values`)
profiles/<config name>/dt=…     statistics of the raw columns of a day, and counts of their categorical values
                                (profiles/<config name>/<split>/dt=… for a log that is not stored by day)
quality/<config name>/dt=…      data report of a run date: the day's log compared with the train days
workflow/<version>/             fitted operators, feature_spec.json, vocabularies
features/<workflow version>/dt=…            feature rows of a day
users|items/<workflow version>/dt=…         features of users or items, one row per user or item
item_titles/dt=…                titles and pictures of the items of a run date (items.title, items.image)
datasets/dt=…                   data manifest of a run of build_features: workflow version, days of each split
models/<name>/<version>/        weights and model.json
models/<name>/promotions/       one decision of the gate for each run date
models/<name>/refits/           the refit of the model that was promoted on a run date (train.refit)
models/<name>/blends/           for each run date, the weights that combine scores of the model and of sources
candidates/<workflow version>/dt=…          the items to score for each user
candidate_items/<workflow version>/dt=…     all items that may be recommended, with their indices
item_vectors/<workflow version>/<source>/dt=…   what a source of candidates computed for each item
recommendations/dt=…            top-k lists
scores/dt=…                     probabilities of feature rows
evaluations/dt=…                comparison of challenger and champion
gate_items/<workflow version>/dt=…          items for evaluate_model, with features from before the test split
blend_items/<workflow version>/dt=…         items for learn_blend, with features from before validation
experiment_items/<workflow version>/dt=…    candidate_items with the features of an experiment's treatment
measures/dt=…                   comparison of the lists with later clicks
experiments/<name>/dt=…         measures of an experiment, by date of the measured lists
comparisons/<name>/dt=…         comparison of models and settings (compare_models)
list_changes/dt=…               comparison of the lists of a date with the last published lists; also
                                written if lists exceed a limit, so that they are not published
deliveries/dt=…                 the sinks to which the lists of a date were delivered
checkpoints/<version>/          checkpoints of training runs in progress
runs/dt=…                       one run record for each attempt at a job (reporting/monitoring)
spark-events/                   Spark's event logs, for Spark's history server
erasures/                       records of erased users, and users.json: salted digests of their ids
reports/, logs/                 HTML reports; logs of stages, and stack traces
leases/                         leases of running jobs (storage/leases.py)
mlflow.db                       MLflow's store (only in a local lake)

The folder of a partition (`<table>/dt=…`) contains the manifest. On a local file system it also contains one
hard link for each published file, for tools that list folders. The files themselves are in a separate folder,
which tools must not list:

_data/<table>/dt=…/<attempt>/   data files of one attempt to write them; the manifest names them
_data/<table>/_delta_log/       only on an object store: the Delta log for other tools
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage import file_io
from storage.lineage import NOT_RECORDED, LineageRecorder

DATA = "_data"
_UP = "../"

# All folders that jobs write below the root of a lake.
FOLDERS = frozenset(
    {
        "raw",
        "quarantine",
        "copies",
        "typed",
        "prepared",
        "value_counts",
        "last_clicks",
        "last_values",
        "profiles",
        "quality",
        "workflow",
        "features",
        "users",
        "items",
        "item_titles",
        "datasets",
        "models",
        "candidates",
        "candidate_items",
        "item_vectors",
        "recommendations",
        "scores",
        "evaluations",
        "gate_items",
        "blend_items",
        "experiment_items",
        "measures",
        "experiments",
        "comparisons",
        "list_changes",
        "deliveries",
        "checkpoints",
        "runs",
        "spark-events",
        "erasures",
        "reports",
        "logs",
        "leases",
        "_data",
    }
)


@dataclass(frozen=True)
class Partition:
    """One date of one table. A job always replaces all files of a partition.

    Attributes:
        dt: the ISO date.
        path: the path or URI of the folder of the partition, `<lake>/<table>/dt=…`.
        depth: number of levels from the folder that contains `_data` down to `path`; 2 for
            `<lake>/<table>/dt=…`.
        recorder: records when this partition is read or published. Equality and hash ignore it.
        internal: whether only jobs read the partition. Such a partition has no hard links and no entry in a
            Delta log.
    """

    table: str
    dt: str
    path: str
    depth: int = 2
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)
    internal: bool = False

    @property
    def root(self) -> str:
        """Returns the path of the folder that contains both the table's folder and `_data`."""
        return self.file(f"{_UP * self.depth}.")

    @property
    def data(self) -> str:
        """Returns the path of the folder of data files, relative to the partition's folder.

        Manifests contain this relative path.
        """
        below = "/".join(self.path.split("/")[-self.depth :])
        return f"{_UP * self.depth}{DATA}/{below}"

    def file(self, name: str) -> str:
        """Returns the full path of a file, from its path relative to the partition's folder.

        Manifests contain such relative paths, which may begin with `../`.
        """
        folder = self.path
        while name.startswith(_UP):
            folder, name = folder.rpartition("/")[0] if "/" in folder else ".", name.removeprefix(_UP)
        return f"{folder}/{name}"


@dataclass(frozen=True)
class Table:
    """A table with one partition for each date. `name` is the path of the table below the lake's root."""

    name: str
    path: str
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)
    internal: bool = False

    def partition(self, dt: str) -> Partition:
        """Returns the partition of one date."""
        depth = self.name.count("/") + 2
        return Partition(self.name, dt, f"{self.path}/dt={dt}", depth, self.recorder, self.internal)


@dataclass(frozen=True)
class LakePaths:
    """The tables below one root (a local path or a URI).

    `recorder` records the partitions of these tables that are read or published. Equality and hash ignore it.
    """

    root: str
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)

    def _table(self, *parts: str, internal: bool = False) -> Table:
        name = "/".join(parts)
        return Table(name, f"{self.root.rstrip('/')}/{name}", self.recorder, internal)

    @property
    def raw(self) -> Table:
        """Returns the location of the table with raw logs that generate_clicks writes."""
        return self._table("raw")

    @property
    def quarantine(self) -> Table:
        """Returns the location of the table with raw rows that could not be parsed, with reasons."""
        return self._table("quarantine")

    @property
    def typed(self) -> Table:
        """Returns the location of the table with a day's parsed text log, which older releases wrote."""
        return self._table("typed", internal=True)

    def prepared(self, config_name: str) -> Table:
        """Returns the location of the table with prepared rows, by day (etl.prepare.prepared_passes)."""
        return self._table("prepared", config_name, internal=True)

    def copies(self, config_name: str, table: str) -> Table:
        """Returns the location of the table with rows copied from a table of Spark's catalogue, by day."""
        return self._table("copies", config_name, table, internal=True)

    def tables_of_copies(self, config_name: str) -> list[Table]:
        """Returns the location of each table in `copies/<config name>` that has files, published or not."""
        folder = f"{self.root.rstrip('/')}/{DATA}/copies/{config_name}"
        names = sorted(info.base_name for info in file_io.list_files(folder))
        return [self.copies(config_name, name) for name in names]

    def profiles(self, config_name: str, split: str | None = None) -> Table:
        """Returns the location of the table with statistics of raw columns, by day.

        Pass `split` if the log has no days.
        """
        return self._table("profiles", config_name, *([split] if split else []))

    def quality(self, config_name: str) -> Table:
        """Returns the location of the table with data reports, by run date."""
        return self._table("quality", config_name)

    @property
    def value_counts(self) -> Table:
        """Returns the location of the table with counts of raw values, by day."""
        return self._table("value_counts")

    @property
    def last_clicks(self) -> Table:
        """Returns the location of the table with each user's last clicks, by day."""
        return self._table("last_clicks")

    def last_values(self, config_name: str) -> Table:
        """Returns the location of the table with last values of items, by day (etl.prepare.last_values)."""
        return self._table("last_values", config_name)

    @property
    def datasets(self) -> Table:
        """Returns the location of the table with data manifests, by run date (storage.dataset)."""
        return self._table("datasets")

    @property
    def recommendations(self) -> Table:
        """Returns the location of the table with top-k lists, by run date."""
        return self._table("recommendations")

    @property
    def list_changes(self) -> Table:
        """Returns the location of the table with changes of lists, which score_daily writes.

        The table compares the lists of a date with the last lists that were published.
        """
        return self._table("list_changes")

    @property
    def deliveries(self) -> Table:
        """Returns the location of the table with deliveries, by the date of the lists.

        The table names the sinks to which deliver_recommendations delivered the lists.
        """
        return self._table("deliveries")

    @property
    def scores(self) -> Table:
        """Returns the location of the table with probabilities of feature rows (score_rows)."""
        return self._table("scores")

    @property
    def evaluations(self) -> Table:
        """Returns the location of the table with comparisons of challenger and champion (evaluate_model)."""
        return self._table("evaluations")

    def gate_items(self, workflow_version: str) -> Table:
        """Returns the location of the table with the items that evaluate_model ranks.

        Features are from before the test split.
        """
        return self._table("gate_items", workflow_version)

    def blend_items(self, workflow_version: str) -> Table:
        """Returns the location of the table with the items that learn_blend ranks.

        Features are from before the validation split.
        """
        return self._table("blend_items", workflow_version)

    def experiment_items(self, workflow_version: str) -> Table:
        """Returns the location of the table with candidate items for the treatment of an experiment."""
        return self._table("experiment_items", workflow_version)

    def experiments(self, name: str) -> Table:
        """Returns the location of the table with an experiment's measures, by the date of its lists."""
        return self._table("experiments", name)

    @property
    def measures(self) -> Table:
        """Returns the location of the table with measures of lists, by the date of the lists.

        measure_recommendations compares the lists with later clicks.
        """
        return self._table("measures")

    def comparisons(self, name: str) -> Table:
        """Returns the location of the table with comparisons of models and settings (compare_models)."""
        return self._table("comparisons", name)

    @property
    def comparisons_root(self) -> str:
        """Returns the path of the folder with one table for each name of a comparison (compare_models)."""
        return self._table("comparisons").path

    def features(self, workflow_version: str) -> Table:
        """Returns the location of the table with feature rows of one workflow version, by day."""
        return self._table("features", workflow_version)

    def users(self, workflow_version: str) -> Table:
        """Returns the location of the table with features of users, one row per user."""
        return self._table("users", workflow_version)

    def items(self, workflow_version: str) -> Table:
        """Returns the location of the table with features of items, one row per item."""
        return self._table("items", workflow_version)

    @property
    def item_titles(self) -> Table:
        """Returns the location of the table with titles and pictures of items, by run date."""
        return self._table("item_titles")

    def candidates(self, workflow_version: str) -> Table:
        """Returns the location of the table with the indices of the items to score for each user."""
        return self._table("candidates", workflow_version)

    def candidate_items(self, workflow_version: str) -> Table:
        """Returns the location of the table with the items that may be recommended and their indices."""
        return self._table("candidate_items", workflow_version)

    def item_vectors(self, workflow_version: str, source: str) -> Table:
        """Returns the location of the table with each item's vector or neighbours, for one source."""
        return self._table("item_vectors", workflow_version, source)

    def workflow(self, version: str) -> str:
        """Returns the path of the folder of a workflow version."""
        return self._table("workflow", version).path

    def feature_spec(self, workflow_version: str) -> str:
        """Returns the path of a workflow version's `feature_spec.json`. Its folder of features has a copy."""
        return f"{self.workflow(workflow_version)}/feature_spec.json"

    def models(self, name: str) -> str:
        """Returns the path of the folder of all versions of a model."""
        return self._table("models", name).path

    def checkpoints(self, version: str) -> str:
        """Returns the path of the folder with the checkpoints of a model version."""
        return self._table("checkpoints", version).path

    def report(self, dt: str) -> str:
        """Returns the path of the HTML report of a run date."""
        return f"{self._table('reports').path}/{dt}.html"

    def comparison_page(self, name: str, dt: str) -> str:
        """Returns the path of the HTML page of a comparison of a run date."""
        return f"{self._table('reports').path}/comparison-{name}-{dt}.html"

    @property
    def logs(self) -> str:
        """Returns the path of the folder with logs of stages and stack traces."""
        return self._table("logs").path

    @property
    def leases(self) -> str:
        """Returns the path of the folder with the leases of running jobs (storage/leases.py)."""
        return self._table("leases").path

    @property
    def runs(self) -> Table:
        """Returns the location of the table with run records.

        Records are never replaced, and no manifest lists them.
        """
        return self._table("runs")

    @property
    def event_logs(self) -> str:
        """Returns the path of the folder of Spark's event logs."""
        return self._table("spark-events").path

    @property
    def erasures(self) -> str:
        """Returns the path of the folder with the records of erased users."""
        return self._table("erasures").path

    @property
    def mlflow_uri(self) -> str | None:
        """Returns the URI of MLflow's store in the lake; None on an object store (SQLite needs a file)."""
        if not file_io.is_local(self.root):
            return None
        return f"sqlite:///{file_io.filesystem(self.root)[1]}/mlflow.db"
