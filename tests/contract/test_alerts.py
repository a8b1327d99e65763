"""conf/alerts.yaml, checked by Prometheus's own tool.

A good month fires no alert. Each rule fires on the case that it is for, and only on that.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[2] / "conf/alerts.yaml"
pytestmark = pytest.mark.processes

DAYS = 30
DAY_S = 86_400
SAMPLES_A_DAY = 288  # a value is known for five minutes
Values = list[float]  # by day
Series = dict[str, Values]


def steady(value: float, *last: float) -> Values:
    """A value of every day but the last ones."""
    return [value] * (DAYS - len(last)) + list(last)


def nightly(after_s: int = 0, until: int = DAYS) -> Values:
    """The time of something that happens once a day, so long after midnight, until it stops."""
    return [min(day, until) * DAY_S + after_s for day in range(DAYS)]


PUBLISHED = 'nightrank_last_success_timestamp_seconds{job="score_daily"}'
DELIVERED = 'nightrank_last_success_timestamp_seconds{job="deliver_recommendations"}'
NEWEST = 'nightrank_last_success_date_timestamp_seconds{job="score_daily"}'
EXIT_CODE = 'nightrank_run_exit_code{job="score_daily"}'
SUCCESS = 'nightrank_run_success{job="score_daily"}'
DROPPED = 'nightrank_rows_dropped{job="build_features",reason="other"}'
ROWS_OUT = 'nightrank_rows_out{job="score_daily"}'
WARNINGS = 'nightrank_warnings{job="score_daily"}'
SECONDS = 'nightrank_run_seconds{job="score_daily"}'
CORE_SECONDS = 'nightrank_core_seconds{job="score_daily"}'
FAILED_TASKS = 'nightrank_spark_failed_tasks{job="score_daily"}'
SPILLED = 'nightrank_spark_spilled_bytes{job="score_daily"}'
PROMOTED = 'nightrank_fact{job="evaluate_model",fact="promoted"}'
LIFT = 'nightrank_fact{job="measure_recommendations",fact="lift"}'

# A month of good runs.
GOOD: Series = {
    PUBLISHED: nightly(),
    DELIVERED: nightly(60),
    NEWEST: nightly(),
    EXIT_CODE: steady(0),
    SUCCESS: steady(1),
    'nightrank_rows_dropped{job="build_features",reason="few"}': steady(10),
    DROPPED: steady(9),
    'nightrank_rows_in{job="build_features"}': steady(1000),
    ROWS_OUT: steady(1000),
    WARNINGS: steady(0),
    SECONDS: steady(3000),
    CORE_SECONDS: steady(90_000),
    FAILED_TASKS: steady(0),
    'nightrank_spark_tasks{job="score_daily"}': steady(100),
    SPILLED: steady(0),
    PROMOTED: [float(day % 7 == 6) for day in range(DAYS)],
    LIFT: steady(2),
}
# Alert → what goes wrong in place of the good values, and the labels that it has beside the config.
OF_JOB = {"job": "score_daily"}
BAD: dict[str, tuple[Series, dict[str, str]]] = {
    "NightrankListsLate": ({PUBLISHED: nightly(until=DAYS - 2)}, {}),
    "NightrankListsOld": ({NEWEST: nightly(until=DAYS - 5)}, {}),
    "NightrankBadConfiguration": ({EXIT_CODE: steady(0, 2), SUCCESS: steady(1, 0)}, OF_JOB),
    "NightrankBadData": ({EXIT_CODE: steady(0, 3), SUCCESS: steady(1, 0)}, OF_JOB),
    "NightrankKeepsFailing": ({EXIT_CODE: steady(0, 4), SUCCESS: steady(1, 0)}, OF_JOB),
    "NightrankDeliveryBehind": ({DELIVERED: nightly(60, until=DAYS - 2)}, {}),
    "NightrankDropsMany": ({DROPPED: steady(9, 20)}, {"job": "build_features"}),
    "NightrankListsShrank": ({ROWS_OUT: steady(1000, 600)}, OF_JOB),
    "NightrankWarned": ({WARNINGS: steady(0, 2)}, OF_JOB),
    "NightrankSlow": ({SECONDS: steady(3000, 9000)}, OF_JOB),
    "NightrankCostly": ({CORE_SECONDS: steady(90_000, 300_000)}, OF_JOB),
    "NightrankTasksFail": ({FAILED_TASKS: steady(0, 6)}, OF_JOB),
    "NightrankSpills": ({SPILLED: steady(0, 20e9)}, OF_JOB),
    "NightrankNothingPromoted": ({PROMOTED: steady(0)}, {"job": "evaluate_model", "fact": "promoted"}),
    "NightrankListsWorthLittle": (
        {LIFT: steady(2, 0.9, 0.9, 0.9)},
        {"job": "measure_recommendations", "fact": "lift"},
    ),
}


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def expected(alert: str, labels: dict[str, str]) -> dict[str, Any]:
    """The alert as promtool prints it."""
    rule = rules()[alert]
    summary = rule["annotations"]["summary"].replace("{{ $value }}", "2")
    for name, value in {"config": "shop", **labels}.items():
        summary = summary.replace(f"{{{{ $labels.{name} }}}}", value)
    return {
        "exp_labels": {"config": "shop", **labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }


def month(series: Series, fires: dict[str, dict[str, str]]) -> dict[str, Any]:
    """A test of promtool: what fires an hour before the end of a month of these values."""
    written = {
        name.replace("{", '{config="shop",'): " ".join(
            f"{value:.15g}x{SAMPLES_A_DAY - 1}" for value in values
        )
        for name, values in series.items()
    }
    return {
        "interval": "5m",
        "input_series": [{"series": name, "values": values} for name, values in written.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{DAYS * 24 - 1}h",
                "alertname": alert,
                "exp_alerts": [expected(alert, fires[alert])] if alert in fires else [],
            }
            for alert in rules()
        ],
    }


@pytest.fixture(scope="module")
def promtool() -> str:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH (Debian: apt-get install prometheus)")
    return promtool


def passes(promtool: str, tmp_path: Path, *months: dict[str, Any], rules: Path = RULES) -> None:
    written = tmp_path / "alerts_test.yaml"
    written.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1h", "tests": list(months)})
    )
    done = subprocess.run([promtool, "test", "rules", written], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_month_in_which_it_fires() -> None:
    assert set(BAD) == set(rules())


def test_a_good_month_fires_nothing(promtool: str, tmp_path: Path) -> None:
    passes(promtool, tmp_path, month(GOOD, {}))


@pytest.mark.parametrize("alert", BAD)
def test_a_rule_fires_on_what_it_is_for(promtool: str, tmp_path: Path, alert: str) -> None:
    changed, labels = BAD[alert]
    passes(promtool, tmp_path, month(GOOD | changed, {alert: labels}))
