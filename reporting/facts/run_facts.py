"""Reads the results of one run for the report from manifests. Missing results are None or empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.train_types import ScoreKind
from conf.types import SPLITS, Config, Negatives
from etl.quality.checks import DayComparison, Finding, MissingRows, check_missing_rows, unchecked
from etl.raw.row_rules import Misdated
from storage import file_io
from storage.dataset import Dataset, read_dataset
from storage.feature_spec import ITEM_KEY, LABEL, ROW_ID, USER_KEY
from storage.file_digests import open_file
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import Manifest, data_files, is_published, read_manifest
from storage.paths import LakePaths, Partition
from storage.read_parquet import REBUILD, errors_of_file, read_where
from training.registry.model_json import is_complete, read_description, score_kind

_RUN_DATES = 14


@dataclass(frozen=True)
class Day:
    """Figures of the rows of one day in one split.

    Attributes:
        split: the split.
        dt: the day.
        rows_in: number of rows that were read for the complete day.
        rows: number of rows of the day in this split.
        dropped: maps each reason to the number of rows of the complete day that were left out for this
            reason.
        click_rate: share of clicks in the rows of the split, estimated from some files; None if there are no
            rows.
        misdated: number of rows of the complete day whose event_time is outside of the day; None if they were
            not counted.
    """

    split: str
    dt: str
    rows_in: int
    rows: int
    dropped: Mapping[str, int]
    click_rate: float | None
    misdated: int | None = None

    @property
    def clicks(self) -> int | None:
        """Returns the number of clicks in the rows of the split, estimated like the click rate."""
        return None if self.click_rate is None else round(self.click_rate * self.rows)


@dataclass(frozen=True)
class MeasuredRelevance:
    """The measured relevance of the lists of one date, from measure_recommendations.

    Attributes:
        dt: the date of the lists.
        values: the measures, which are the `facts` of the manifest.
    """

    dt: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class DataQuality:
    """The data report of a day, which build_features published.

    Attributes:
        compared: the comparison of the day with its train days.
        findings: the figures that are above a limit.
        unchecked: the figures that are not compared with a limit, each as a text that includes the reason.
    """

    compared: DayComparison
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """The results of one run date.

    Attributes:
        mode: whether the workflow was fitted, extended or applied; None without a dataset.
        days: the days of the dataset, one entry for each split that contains rows of the day.
        missing: how many users and how many items of the log have no row in their table of attributes.
            Without a table of users (or items), it has no entry for users (or items).
        quality: the data report. It exists even if a limit of the section `quality` stopped the run.
        evaluation: the results that evaluate_model published on this date; None for a run without training.
        model: the content of a model.json. It describes the challenger that was trained on this date or,
            without training, the model that made the lists. It never describes a refit, because refits have
            no measures.
        changes: the comparison of the new lists with the last published lists. It exists even if the new
            lists were not published.
        delivery: the results of deliver_recommendations; None if the lists were not delivered.
        measure: the measured relevance of the lists of this date or, if these lists have not been measured
            yet, of the lists of the previous day.
        per_positive: the value of negatives.per_positive; None without the section `negatives`.
        model_scores, list_scores: the kind of the scores of `model`, and the kind of the scores in the lists.
    """

    name: str
    run_date: str
    mode: str | None
    days: tuple[Day, ...]
    missing: tuple[MissingRows, ...]
    quality: DataQuality | None
    evaluation: Mapping[str, Any] | None
    model: Mapping[str, Any] | None
    recommendations: Manifest | None
    changes: Mapping[str, Any] | None
    delivery: Mapping[str, Any] | None
    measure: MeasuredRelevance | None
    per_positive: int | None
    model_scores: ScoreKind
    list_scores: ScoreKind

    @property
    def of_choices(self) -> bool:
        """Returns whether each row of the log is an item that a user chose.

        In such a log, the click rate has no meaning.
        """
        only_clicks = self.quality is not None and self.quality.compared.only_clicks
        return self.per_positive is not None or only_clicks

    @property
    def judged_scores(self) -> ScoreKind:
        """Returns the kind of scores (such as probabilities) of the model that `judged` describes."""
        return cast(ScoreKind, (self.judged or {}).get("scores", self.model_scores))

    @property
    def promoted(self) -> bool | None:
        """Returns whether the gate promoted the challenger. Returns None for a run without training."""
        return None if self.evaluation is None else bool(self.evaluation["promoted"])

    @property
    def judged(self) -> Mapping[str, Any] | None:
        """Returns the test figures of the model that serves after the gate's decision.

        Returns None for a run without training.
        """
        if self.evaluation is None:
            return None
        champion = self.evaluation["champion"]
        return self.evaluation["challenger"] if self.promoted or champion is None else champion


def read_run_facts(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> RunFacts:
    """Reads the results that the jobs of a run date published.

    Args:
        config: the configuration.
        run_date: the run date.
        recorder: records the tables that are read, for lineage.
    """
    lake = LakePaths(config.lake, recorder)
    evaluation = published_facts(lake.evaluations.partition(run_date))
    recommendations = _published(lake.recommendations.partition(run_date))
    mode, days = _days(lake, run_date)
    missing = _missing(lake, run_date)
    model = _model(lake, config.name, _version(evaluation, recommendations))
    listed = recommendations.facts if recommendations else {}
    return RunFacts(
        name=config.name,
        run_date=run_date,
        mode=mode,
        days=days,
        missing=missing,
        quality=_quality(config, lake, run_date, missing),
        evaluation=evaluation,
        model=model,
        recommendations=recommendations,
        changes=published_facts(lake.list_changes.partition(run_date)),
        delivery=published_facts(lake.deliveries.partition(run_date)),
        measure=_measure(lake, run_date),
        per_positive=config.negatives.per_positive if config.negatives else None,
        model_scores=score_kind(model or {}, config),
        list_scores=cast(ScoreKind, listed.get("scores", config.score_kind)),
    )


def earlier_run_dates(config: Config, run_date: str) -> list[str]:
    """Returns the last fourteen dates with published lists or an evaluation, oldest first.

    `run_date` is included; later dates are not.
    """
    lake = LakePaths(config.lake)
    dates = set()
    for table in (lake.recommendations, lake.evaluations):
        for entry in file_io.list_files(table.path):
            dt = Path(entry.path).name.removeprefix("dt=")
            if dt <= run_date and is_published(table.partition(dt)):
                dates.add(dt)
    return sorted(dates)[-_RUN_DATES:]


def published_facts(partition: Partition) -> Mapping[str, Any] | None:
    """Returns the `facts` of a partition's manifest; None if the partition is not published."""
    manifest = _published(partition)
    return None if manifest is None else manifest.facts


def _published(partition: Partition) -> Manifest | None:
    """Returns the manifest of a partition; None if the partition is not published."""
    return read_manifest(partition) if is_published(partition) else None


def _days(lake: LakePaths, run_date: str) -> tuple[str | None, tuple[Day, ...]]:
    """Returns the mode of the workflow, and the days of all splits of the run, ordered by date."""
    if not is_published(lake.datasets.partition(run_date)):
        return None, ()
    dataset = read_dataset(lake, run_date)
    days, order = [], list[str](SPLITS)
    for split, members in dataset.splits.items():
        for member in members:
            partition = lake.features(dataset.workflow_version).partition(member.dt)
            if is_published(partition):
                counted = Misdated.from_facts(published_facts(lake.quarantine.partition(member.dt)) or {})
                misdated = counted.rows if counted else None
                days.append(_day(split, partition, member.label, misdated))
    return dataset.mode, tuple(sorted(days, key=lambda day: (day.dt, order.index(day.split))))


def _day(split: str, partition: Partition, label: str | None, misdated: int | None) -> Day:
    """Reads the number of rows and the click rate of a day in one split."""
    manifest = read_manifest(partition)
    clicks = rows = 0
    for path in even_files(partition, manifest, label):
        labels = column(path, LABEL)
        clicks, rows = clicks + int(pc.sum(labels, min_count=0).as_py()), rows + len(labels)
    of_split = sum(file.rows for file in manifest.split_files(label))
    rate = clicks / rows if rows else None
    return Day(split, partition.dt, manifest.rows_in, of_split, manifest.dropped, rate, misdated)


def _missing(lake: LakePaths, run_date: str) -> tuple[MissingRows, ...]:
    """Returns how many users and items have no row in their tables of attributes.

    The numbers are in the manifests of the tables `users` and `items`.
    """
    if not is_published(lake.datasets.partition(run_date)):
        return ()
    version = read_dataset(lake, run_date).workflow_version
    facts = (
        published_facts(table.partition(run_date)) for table in (lake.users(version), lake.items(version))
    )
    of_tables = (MissingRows.from_facts(of_table) for of_table in facts if of_table is not None)
    return tuple(missing for missing in of_tables if missing is not None)


def _quality(
    config: Config, lake: LakePaths, run_date: str, missing: Sequence[MissingRows]
) -> DataQuality | None:
    """Returns the data report of a run date; None if no data report was published.

    The shares in `missing` that are above a limit are also findings.
    """
    facts = published_facts(lake.quality(config.name).partition(run_date))
    if facts is None:
        return None
    compared = DayComparison.from_facts(facts)
    findings = [Finding.from_facts(finding) for finding in facts["findings"]]
    findings += check_missing_rows(config.quality, missing)
    draws, drawn_columns = config.negatives is not None, config.drawn_columns
    return DataQuality(
        compared, tuple(findings), tuple(unchecked(config.split, compared, draws, drawn_columns))
    )


def _version(evaluation: Mapping[str, Any] | None, recommendations: Manifest | None) -> str | None:
    """Returns the version of the challenger.

    If there is no challenger, returns the version of the model that made the lists. If a refit made the
    lists, returns the version of the model that it refits, because a refit has no measures.
    """
    if evaluation is not None:
        return str(evaluation["challenger"]["version"])
    if recommendations is None:
        return None
    return recommendations.facts.get("refit_of") or recommendations.facts.get("model_version")


def _model(lake: LakePaths, name: str, version: str | None) -> Mapping[str, Any] | None:
    """Returns the content of model.json. Returns None if the model is not complete."""
    path = f"{lake.models(name)}/{version}"
    return read_description(path) if version and is_complete(path) else None


def _measure(lake: LakePaths, run_date: str) -> MeasuredRelevance | None:
    """Returns the measured relevance of the lists of the run date.

    If these lists have not been measured yet, returns the measured relevance of the previous day's lists.
    """
    before = (date.fromisoformat(run_date) - timedelta(days=1)).isoformat()
    for dt in (run_date, before):
        values = published_facts(lake.measures.partition(dt))
        if values is not None:
            return MeasuredRelevance(dt, values)
    return None


def logistic_regression(evaluation: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the test figures of the logistic regression baseline; None if this baseline was not trained."""
    baseline = ((evaluation or {}).get("baselines") or {}).get("logistic_regression") or {}
    return baseline.get("test")


# Functions that read the lists of a run for the report: counts of recommended items, lists of a few users.


MOST_CLICKED = 5  # number of a user's clicked items that the report shows


@dataclass(frozen=True)
class ItemCounts:
    """The number of recommendations of each item, counted in a sample of the list entries.

    Attributes:
        times: maps each item to the number of its list entries in the sample.
        rows: number of list entries in the sample.
        of_rows: number of all list entries.
    """

    times: Counter[str]
    rows: int
    of_rows: int


@dataclass(frozen=True)
class UserHistory:
    """The clicks and impressions of one user on the days of the dataset.

    Attributes:
        items: maps each item to two numbers: the user's clicks on the item, and the user's impressions of the
            item.
    """

    items: dict[str, tuple[int, int]]

    def most_clicked(self, n: int) -> list[tuple[str, int, int]]:
        """Returns the n items with the most clicks, as tuples (item, clicks, impressions).

        If numbers of clicks are equal, the items are ordered by key.
        """
        clicked = [(item, clicks, shown) for item, (clicks, shown) in self.items.items() if clicks]
        return sorted(clicked, key=lambda row: (-row[1], row[0]))[:n]


@dataclass(frozen=True)
class UserList:
    """The list of one user.

    Attributes:
        user: the id of the user.
        entries: one tuple (position, item, score, reason) per list entry, ordered by position.
        history: the user's clicks and impressions; None if the dataset does not exist or has no user column.
    """

    user: str
    entries: list[tuple[int, str, float, str]]
    history: UserHistory | None

    @property
    def items(self) -> list[str]:
        """Returns the items of the list, and the items that the user clicked most."""
        clicked = self.history.most_clicked(MOST_CLICKED) if self.history else []
        return [*(entry[1] for entry in self.entries), *(item for item, _, _ in clicked)]


def count_items(partition: Partition, manifest: Manifest) -> ItemCounts:
    """Counts the items in evenly spaced files of the lists: at most about 5 million list entries in total."""
    times: Counter[str] = Counter()
    for path in even_files(partition, manifest):
        for count in column(path, "item_id").value_counts().to_pylist():
            times[count["values"]] += count["counts"]
    return ItemCounts(times, sum(times.values()), manifest.rows)


def sample_lists(
    lake: LakePaths,
    partition: Partition,
    manifest: Manifest,
    dataset: Dataset | None,
    n: int,
    negatives: Negatives | None = None,
) -> list[UserList]:
    """Returns the lists of up to n users.

    The chosen users are evenly spaced in the partition, which is sorted by user. A rerun chooses the same
    users. For `negatives`, see `histories`.
    """
    files = data_files(partition, manifest)
    if not manifest.rows:
        return []
    users = sorted(
        {_user_at(files, manifest, (2 * index + 1) * manifest.rows // (2 * n)) for index in range(n)}
    )
    reasoned = "reason" in dict(manifest.schema)  # lists of earlier releases have no reasons
    columns = ["user_id", "position", "item_id", "score", *(["reason"] if reasoned else [])]
    rows = rows_where(files, columns, pc.field("user_id").isin(users))
    known = histories(lake, dataset, users, negatives) if dataset is not None else {}
    lists: dict[str, list[tuple[int, str, float, str]]] = {user: [] for user in users}
    for row in rows:
        lists[str(row["user_id"])].append(
            (row["position"], row["item_id"], row["score"], row.get("reason", "ranked"))
        )
    return [UserList(user, sorted(lists[user]), known.get(user)) for user in users]


def _user_at(files: Sequence[str], manifest: Manifest, row: int) -> str:
    """Returns the user of the row with the index `row`.

    Row indices count over all files, in the order of the manifest.
    """
    for path, entry in zip(files, manifest.files, strict=True):
        if row < entry.rows:
            return str(column(path, "user_id")[row].as_py())
        row -= entry.rows
    raise ValueError(
        f"internal error, please report: row {row} is not among the {manifest.rows} rows of "
        f"{manifest.table} {manifest.partition}"
    )


def histories(
    lake: LakePaths, dataset: Dataset, users: list[str], negatives: Negatives | None = None
) -> dict[str, UserHistory]:
    """Returns the clicks and impressions of some users.

    About 5 million rows of the newest days of the dataset are read. The result maps each user to a
    UserHistory. It is empty if the dataset has no user column. Rows that the section `negatives` added are
    not counted, because no user saw their items.
    """
    files, left = [], MOST_ROWS
    members = sorted(
        (member for members in dataset.splits.values() for member in members),
        key=lambda m: m.dt,
        reverse=True,
    )
    for member in members:
        partition = lake.features(dataset.workflow_version).partition(member.dt)
        if left <= 0 or not is_published(partition):
            continue
        manifest = read_manifest(partition)
        if USER_KEY not in dict(manifest.schema):
            return {}
        files += data_files(partition, manifest, member.label)
        left -= sum(file.rows for file in manifest.split_files(member.label))
    by_user: dict[str, dict[str, tuple[int, int]]] = {user: {} for user in users}
    columns = [USER_KEY, ITEM_KEY, LABEL, *([ROW_ID] if negatives else [])]
    for row in rows_where(files, columns, pc.field(USER_KEY).isin(users)):
        if negatives and negatives.is_drawn(row[ROW_ID]):
            continue
        items = by_user[row[USER_KEY]]
        clicks, shown = items.get(row[ITEM_KEY], (0, 0))
        items[row[ITEM_KEY]] = (clicks + int(row[LABEL]), shown + 1)
    return {user: UserHistory(items) for user, items in by_user.items()}


# Functions that read published Parquet files in this process. They read only some files of large tables.

MOST_ROWS = 5_000_000  # maximum number of rows that are read from a column; reading this many takes seconds


def even_files(partition: Partition, manifest: Manifest, split: str | None = None) -> list[str]:
    """Returns every n-th file of a partition, or of one split of the partition.

    n is chosen so that the files have at most about MOST_ROWS rows together.
    """
    rows = sum(file.rows for file in manifest.split_files(split))
    return data_files(partition, manifest, split)[:: max(1, -(-rows // MOST_ROWS))]


def column(path: str, name: str) -> pa.ChunkedArray:
    """Reads one column of one file."""
    with errors_of_file(path, REBUILD), open_file(path) as source:
        return pq.read_table(source, columns=[name]).column(name)


def rows_where(files: Sequence[str], columns: list[str], condition: pc.Expression) -> list[dict[str, Any]]:
    """Reads the rows that meet a condition.

    A row group is skipped if its statistics show that no row of it meets the condition.

    Raises:
        DataError: a file does not exist or is damaged.
    """
    return list(read_where(files, columns, condition).to_pylist()) if files else []
