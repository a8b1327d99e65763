"""Thirty days of runs and manifests made by hand, with a hole, two failures and a day of drift."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from conf.types import Config
from etl.quality.checks import DayComparison
from reporting.monitoring.run_record import RunRecord, write_record
from storage.manifest import Manifest, replace_manifest
from storage.paths import LakePaths
from tests.reporting.report_lake import RUN_DATE, publish_facts, quality_facts

LOST = 11  # days before the last one on which nothing ran
FAILED, KILLED = 6, 3
HOSTILE_REASON = "<b>label</b>"


def make_history(config: Config, days: int = 30) -> None:
    """A history that ends on RUN_DATE; every fifth day retrains."""
    lake, draw = LakePaths(config.lake), random.Random(3)
    for back in reversed(range(days)):
        if back != LOST:
            dt = (date.fromisoformat(RUN_DATE) - timedelta(days=back)).isoformat()
            _manifests(config, lake, dt, back, draw)
            _runs(config, lake, dt, back, draw)


def record_of(config: Config, dt: str, job: str, **values: Any) -> RunRecord:
    """A run that ended well, with these values in place of its own."""
    plain = RunRecord(
        run_id=f"{hash((dt, job)) & 0xFFFFFFFF:08x}-0000-4000-8000-000000000000",
        job=job,
        config=config.name,
        run_date=dt,
        started_at=f"{dt}T03:00:00Z",
        ended_at=f"{dt}T03:01:00Z",
        seconds=60.0,
        exit_code=0,
    )
    return replace(plain, **values)


def _manifests(config: Config, lake: LakePaths, dt: str, back: int, draw: random.Random) -> None:
    rows = 60_000 + 2_000 * (back % 7) + draw.randrange(3_000)
    dropped = {"field_count": 60, HOSTILE_REASON: 30 + back, "integer:I2": 12, "missing_key:C1": 7}
    log = Manifest("quarantine", dt, (), (), {}, rows_in=rows, dropped=dropped)
    replace_manifest(lake.quarantine.partition(dt), log)
    if back % 5 == 0:
        auc = 0.79 + 0.004 * math.sin(back) + 0.0002 * (30 - back)
        models = {"challenger": {"auc": auc}, "champion": {"auc": auc - 0.002}, "best_auc": 0.812}
        if dt != RUN_DATE:
            publish_facts(lake.evaluations.partition(dt), {**models, "promoted": True, "reason": "better"})
    facts = quality_facts(())
    compared = DayComparison.from_facts(facts)
    psi = 0.41 if back == 9 else 0.04 + 0.02 * draw.random()
    columns = [replace(column, psi=psi if column.name == "C2" else None) for column in compared.columns]
    if dt != RUN_DATE:
        facts = {**replace(compared, columns=tuple(columns)).to_facts(), "findings": []}
        publish_facts(lake.quality(config.name).partition(dt), facts)
        changes = {"churn": 0.2 + 0.1 * draw.random(), "score_psi": 0.02 + 0.03 * draw.random()}
        publish_facts(lake.list_changes.partition(dt), changes)


def _runs(config: Config, lake: LakePaths, dt: str, back: int, draw: random.Random) -> None:
    jobs = {"build_features": 95.0, "build_candidates": 25.0, "score_daily": 60.0, "report": 4.0}
    if back % 5 == 0:
        jobs |= {"train_model": 180.0, "evaluate_model": 45.0}
    for job, usual in jobs.items():
        seconds = usual * (0.9 + 0.2 * draw.random()) * (2.2 if back == 2 and job == "score_daily" else 1)
        core_s = 16 * seconds
        facts = {"rows_per_s": 90_000 + draw.randrange(9_000)} if job == "train_model" else {}
        counted = {"rows_in": 480_000, "rows_out": 40_000, "seconds": round(seconds, 2), "facts": facts}
        price = {"core_s": core_s, "cost": round(core_s / 3600 * 0.05, 6), "currency": "EUR"}
        write_record(lake, record_of(config, dt, job, **counted, **price))
    codes = dict.fromkeys(jobs, 0)
    if back == FAILED:
        error = {"kind": "DataError", "problem": "the <log> of that day is empty", "remedy": "deliver it"}
        at = {"started_at": f"{dt}T02:00:00Z", "ended_at": f"{dt}T02:00:30Z"}
        write_record(
            lake, record_of(config, dt, "build_features", exit_code=3, error=error, core_s=480.0, **at)
        )
    if back == KILLED:
        codes["score_daily"] = 137
    nightly_facts = {"exit_codes": codes}
    write_record(lake, record_of(config, dt, "nightly", facts=nightly_facts, exit_code=max(codes.values())))
