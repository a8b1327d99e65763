"""The last thirty days as the report shows them: one entry a run date, from the rows of `runs` and from manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from conf.types import Config
from reporting.monitoring.run_record import RunRecord, dates_up_to, read_records
from storage import lineage
from storage.manifest import is_published, read_manifest
from storage.paths import Lake, Partition

DAYS = 30
_READERS = 8
_CLEAN_EXITS = (0, 2, 3, 4)
# What a job's seconds are counted under; jobs that are not named are `other`.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "features": ("build_features",),
    "training and gate": ("train_model", "train_retriever", "evaluate_model"),
    "lists and delivery": ("build_candidates", "score_daily", "score_rows", "deliver_recommendations"),
    "other": (),
}


@dataclass(frozen=True)
class Failure:
    """An attempt that failed: of a job that told why itself, or of one that was killed and that the night told of."""

    dt: str
    job: str
    ended_at: str
    exit_code: int
    problem: str


@dataclass(frozen=True)
class DayFacts:
    """One run date; None where nothing says.

    Attributes:
        rows, dropped: of the date's own log: rows that came in, and reason → rows left out.
        psi, psi_column: the column that drifted most against the train days.
        seconds: group of jobs → seconds of their last attempts that ended well.
        rows_per_s: job → rows a second in that attempt; of train_model the rows trained on.
        core_s, cost: of all attempts, those that failed too.
    """

    dt: str
    rows: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    auc: float | None = None
    champion_auc: float | None = None
    best_auc: float | None = None
    psi: float | None = None
    psi_column: str | None = None
    score_psi: float | None = None
    churn: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    rows_per_s: Mapping[str, float] = field(default_factory=dict)
    core_s: float = 0.0
    cost: float | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def dropped_share(self) -> float | None:
        return sum(self.dropped.values()) / self.rows if self.rows else None


@dataclass(frozen=True)
class History:
    """`days` that have anything to tell, oldest first; `currency` of the costs."""

    days: tuple[DayFacts, ...]
    currency: str | None


def read_history(config: Config, run_date: str, days: int = DAYS) -> History:
    """What the lake knows of the run dates up to this one."""
    lake, dates = Lake(config.lake), dates_up_to(run_date, days)
    of_date: dict[str, list[RunRecord]] = {dt: [] for dt in dates}
    for record in read_records(lake, dates, config.name):
        of_date[record.run_date].append(record)
    with (
        lineage.paused(),
        ThreadPoolExecutor(_READERS) as pool,
    ):  # a page of figures is not made of these data
        found = list(pool.map(lambda dt: _day(config, lake, dt, of_date[dt]), dates))
    currencies = [each.currency for records in of_date.values() for each in records if each.currency]
    told = tuple(day for day in found if day != DayFacts(day.dt))
    return History(told, currencies[-1] if currencies else None)


def _day(config: Config, lake: Lake, dt: str, records: Sequence[RunRecord]) -> DayFacts:
    log = _manifest_of(lake.quarantine.partition(dt))
    evaluation = _facts(lake.evaluations.partition(dt))
    changes = _facts(lake.list_changes.partition(dt))
    champion = evaluation.get("champion")
    psi = _worst_psi(config, _facts(lake.quality(config.name).partition(dt)))
    last = last_successes(records)
    costs = [each.cost for each in records if each.cost is not None]
    return DayFacts(
        dt=dt,
        rows=log[0],
        dropped=log[1],
        auc=(evaluation.get("challenger") or {}).get("auc"),
        champion_auc=champion["auc"] if champion else None,
        best_auc=evaluation.get("best_auc"),
        psi=psi[0],
        psi_column=psi[1],
        score_psi=changes.get("score_psi"),
        churn=changes.get("churn"),
        seconds=_seconds(last.values()),
        rows_per_s=_rows_per_s(last),
        core_s=round(sum(each.core_s for each in records), 2),
        cost=sum(costs) if costs else None,
        failures=tuple(failures_of(records)),
    )


def last_successes(records: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Job → its last attempt that ended well, of records in the order in which they began; without `nightly`."""
    return {each.job: each for each in records if not each.failed and each.job != "nightly"}


def failures_of(records: Sequence[RunRecord]) -> list[Failure]:
    """Attempts that failed, oldest first. What was killed left no record: the night that waited for it tells of it."""
    own = [each for each in records if each.failed and each.job != "nightly"]
    found = [
        Failure(each.run_date, each.job, each.ended_at, each.exit_code, (each.error or {}).get("problem", ""))
        for each in own
    ]
    for run in (each for each in records if each.job == "nightly"):
        told = {each.job for each in own if run.started_at <= each.started_at <= run.ended_at}
        for stage, code in run.facts.get("exit_codes", {}).items():
            if code not in _CLEAN_EXITS and stage not in told:
                said = "killed, or crashed before it could say why"
                found.append(Failure(run.run_date, stage, run.ended_at, code, said))
    return sorted(found, key=lambda each: (each.ended_at, each.job))


def _seconds(records: Any) -> dict[str, float]:
    found: Counter[str] = Counter()
    for each in records:
        group = next((name for name, jobs in GROUPS.items() if each.job in jobs), "other")
        found[group] += each.seconds
    return dict(found)


def _rows_per_s(last: Mapping[str, RunRecord]) -> dict[str, float]:
    found = {}
    for job in ("build_features", "score_daily", "score_rows"):
        if job in last and last[job].seconds > 0:
            rows = last[job].rows_in if job == "build_features" else last[job].rows_out
            found[job] = rows / last[job].seconds
    trained = last["train_model"].facts.get("rows_per_s") if "train_model" in last else None
    return {**found, "train_model": float(trained)} if trained else found


def _worst_psi(config: Config, quality: Mapping[str, Any]) -> tuple[float | None, str | None]:
    found = [
        (column["psi"], column["name"])
        for column in quality.get("columns", [])
        if column.get("psi") is not None and column["name"] not in config.quality.exempt
    ]
    return max(found) if found else (None, None)


def _manifest_of(partition: Partition) -> tuple[int | None, Mapping[str, int]]:
    if not is_published(partition):
        return None, {}
    manifest = read_manifest(partition)
    return manifest.rows_in, manifest.dropped


def _facts(partition: Partition) -> Mapping[str, Any]:
    return read_manifest(partition).facts if is_published(partition) else {}
