"""conf/grafana.json: its metrics are those that jobs export, and Prometheus answers each of its queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reporting.monitoring.prometheus import METRICS
from tests.contract import test_alerts as alerts
from tests.contract.test_alerts import promtool

__all__ = ["promtool"]

pytestmark = pytest.mark.processes

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conf/grafana.json").read_text(encoding="utf-8")
)
# What a month of runs has beside the values of the alerts: panels leave out what is zero.
MONTH = alerts.GOOD | {
    alerts.SPILLED: alerts.steady(1e9),
    alerts.FAILED_TASKS: alerts.steady(1),
    'nightrank_run_end_timestamp_seconds{nightrank_job="score_daily"}': alerts.nightly(),
    'nightrank_fact{nightrank_job="measure_recommendations",fact="hit_rate"}': alerts.steady(0.3),
    'nightrank_fact{nightrank_job="evaluate_model",fact="challenger_auc"}': alerts.steady(0.8),
    'nightrank_fact{nightrank_job="evaluate_model",fact="champion_auc"}': alerts.steady(0.8),
    'nightrank_fact{nightrank_job="score_daily",fact="coverage"}': alerts.steady(0.5),
    'nightrank_fact{nightrank_job="score_daily",fact="churn"}': alerts.steady(0.1),
}


def queries() -> Iterator[tuple[str, str]]:
    """Pairs of the title of a panel and one of its queries, with the variable for the configuration set."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$config", ".*")
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"].replace("$config", ".*")


def facts() -> set[tuple[str, str]]:
    """Pairs of a job and a number of its summary that the dashboard shows."""
    pattern = r'nightrank_fact\{nightrank_job="(\w+)",fact="(\w+)"'
    return {pair for _, query in queries() for pair in re.findall(pattern, query)}


def test_every_metric_is_one_that_jobs_export() -> None:
    named = {name for _, query in queries() for name in re.findall(r"nightrank_\w+", query)}
    assert named > {"nightrank_job"}
    assert named <= {*METRICS, "nightrank_job"}  # the label of the job
    variable = DASHBOARD["templating"]["list"][1]["definition"]
    assert re.findall(r"nightrank_\w+", variable)[0] in METRICS


def test_panels_do_not_overlap_and_explain_themselves() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def test_prometheus_answers_every_query(promtool: str, tmp_path: Path) -> None:
    """A rule fires if a query has no result in a month of runs."""
    shown = [(title, query) for title, query in queries() if title != "Promotions"]
    groups = [
        {
            "name": "panels",
            "rules": [
                {"alert": f"Panel{number}", "expr": f"absent({query})"}
                for number, (_, query) in enumerate(shown)
            ]
            # A rule of which it is known that it fires, and the query of the annotation, which must parse.
            + [{"alert": "Nothing", "expr": "absent(nightrank_no_such_metric)"}]
            + [{"record": "promotions", "expr": dict(queries())["Promotions"]}],
        }
    ]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": groups}))
    month = alerts.month(MONTH, {})
    month["alert_rule_test"] = [
        {"eval_time": "719h", "alertname": f"Panel{number}", "exp_alerts": []} for number in range(len(shown))
    ] + [{"eval_time": "719h", "alertname": "Nothing", "exp_alerts": [{"exp_labels": {}}]}]
    alerts.passes(promtool, tmp_path, month, rules=tmp_path / "panels.yaml")


def test_a_query_without_a_result_is_found(promtool: str, tmp_path: Path) -> None:
    """The test above fails if a panel has no result: here the month lacks its metric."""
    query = dict(queries())["Age of the newest lists"]
    rules = {"groups": [{"name": "one", "rules": [{"alert": "Panel", "expr": f"absent({query})"}]}]}
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump(rules))
    month = alerts.month({alerts.EXIT_CODE: alerts.steady(0)}, {})
    month["alert_rule_test"] = [
        {"eval_time": "719h", "alertname": "Panel", "exp_alerts": [{"exp_labels": {}}]}
    ]
    alerts.passes(promtool, tmp_path, month, rules=tmp_path / "panels.yaml")
