"""conf/alerts.yaml, checked by Prometheus's own tool.

A good month fires no alert. Each rule fires on the case that it is for, and only on that. The series have the
labels with which a Prometheus server stores what it scrapes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.types import Watch
from local_airflow.home import free_port
from reporting.monitoring.prometheus import expose, run_text
from reporting.monitoring.run_record import RunRecord
from tests.etl.lakes.servers import process

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


PUBLISHED = 'nightrank_last_success_timestamp_seconds{nightrank_job="score_daily"}'
DELIVERED = 'nightrank_last_success_timestamp_seconds{nightrank_job="deliver_recommendations"}'
NEWEST = 'nightrank_last_success_date_timestamp_seconds{nightrank_job="score_daily"}'
EXIT_CODE = 'nightrank_run_exit_code{nightrank_job="score_daily"}'
SUCCESS = 'nightrank_run_success{nightrank_job="score_daily"}'
DROPPED = 'nightrank_rows_dropped{nightrank_job="build_features",reason="other"}'
ROWS_OUT = 'nightrank_rows_out{nightrank_job="score_daily"}'
WARNINGS = 'nightrank_warnings{nightrank_job="score_daily"}'
SECONDS = 'nightrank_run_seconds{nightrank_job="score_daily"}'
CORE_SECONDS = 'nightrank_core_seconds{nightrank_job="score_daily"}'
FAILED_TASKS = 'nightrank_spark_failed_tasks{nightrank_job="score_daily"}'
SPILLED = 'nightrank_spark_spilled_bytes{nightrank_job="score_daily"}'
EVALUATED = 'nightrank_last_success_timestamp_seconds{nightrank_job="evaluate_model"}'
RAN = 'nightrank_last_success_timestamp_seconds{nightrank_job="nightly"}'
PROMOTED = 'nightrank_fact{nightrank_job="evaluate_model",fact="promoted"}'
LIFT = 'nightrank_fact{nightrank_job="measure_recommendations",fact="lift"}'

# A month of good runs.
GOOD: Series = {
    PUBLISHED: nightly(),
    DELIVERED: nightly(60),
    NEWEST: nightly(),
    EXIT_CODE: steady(0),
    SUCCESS: steady(1),
    'nightrank_rows_dropped{nightrank_job="build_features",reason="few"}': steady(10),
    DROPPED: steady(9),
    'nightrank_rows_in{nightrank_job="build_features"}': steady(1000),
    ROWS_OUT: steady(1000),
    WARNINGS: steady(0),
    SECONDS: steady(3000),
    CORE_SECONDS: steady(90_000),
    FAILED_TASKS: steady(0),
    'nightrank_spark_tasks{nightrank_job="score_daily"}': steady(100),
    SPILLED: steady(0),
    # A training each week, of which every second is promoted. The metric keeps the value of the last training.
    PROMOTED: [float(day // 7 % 2) for day in range(DAYS)],
    EVALUATED: [float(day // 7 * 7 * DAY_S) for day in range(DAYS)],
    LIFT: steady(2),
}
# Labels of the program that Prometheus scrapes: node_exporter or a push gateway.
TARGET = {"job": "exporter", "instance": "machine:9100"}
SOURCES = ("text file", "push gateway", "push gateway, honor_labels")

# Alert → what goes wrong in place of the good values, and the labels that it has beside the config.
OF_JOB = {"nightrank_job": "score_daily"}
BAD: dict[str, tuple[Series, dict[str, str]]] = {
    "NightrankListsLate": ({PUBLISHED: nightly(until=DAYS - 2)}, {}),
    "NightrankListsOld": ({NEWEST: nightly(until=DAYS - 5)}, {}),
    "NightrankBadConfiguration": ({EXIT_CODE: steady(0, 2), SUCCESS: steady(1, 0)}, OF_JOB),
    "NightrankBadData": ({EXIT_CODE: steady(0, 3), SUCCESS: steady(1, 0)}, OF_JOB),
    "NightrankKeepsFailing": ({EXIT_CODE: steady(0, 4), SUCCESS: steady(1, 0)}, OF_JOB),
    "NightrankDeliveryBehind": ({DELIVERED: nightly(60, until=DAYS - 2)}, {}),
    "NightrankDropsMany": ({DROPPED: steady(9, 20)}, {"nightrank_job": "build_features"}),
    "NightrankListsShrank": ({ROWS_OUT: steady(1000, 600)}, OF_JOB),
    "NightrankWarned": ({WARNINGS: steady(0, 2)}, OF_JOB),
    "NightrankSlow": ({SECONDS: steady(3000, 9000)}, OF_JOB),
    "NightrankCostly": ({CORE_SECONDS: steady(90_000, 300_000)}, OF_JOB),
    "NightrankTasksFail": ({FAILED_TASKS: steady(0, 6)}, OF_JOB),
    "NightrankSpills": ({SPILLED: steady(0, 20e9)}, OF_JOB),
    "NightrankNothingPromoted": ({PROMOTED: steady(0)}, {}),
    "NightrankListsWorthLittle": (
        {LIFT: steady(2, 0.9, 0.9, 0.9)},
        {"nightrank_job": "measure_recommendations", "fact": "lift"},
    ),
}


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def stored(labels: Mapping[str, str], source: str) -> dict[str, str]:
    """The labels with which Prometheus stores a series of the configuration shop."""
    exported = {"config": "shop", **labels}
    if source != "text file":
        exported["job"] = labels["nightrank_job"]  # part of the key of a group
    if source == "push gateway, honor_labels":
        return TARGET | exported
    renamed = {f"exported_{name}" if name in TARGET else name: value for name, value in exported.items()}
    return TARGET | renamed


def expected(alert: str, labels: dict[str, str], source: str) -> dict[str, Any]:
    """The alert as promtool prints it."""
    rule = rules()[alert]
    labels = {"config": "shop", **labels} if " by (" in rule["expr"] else stored(labels, source)
    summary = rule["annotations"]["summary"].replace("{{ $value }}", "2")
    for name, value in labels.items():
        summary = summary.replace(f"{{{{ $labels.{name} }}}}", value)
    return {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }


def month(series: Series, fires: dict[str, dict[str, str]], source: str = SOURCES[0]) -> dict[str, Any]:
    """A test of promtool: what fires an hour before the end of a month of these values."""
    written = {
        of_prometheus(name, source): " ".join(f"{value:.15g}x{SAMPLES_A_DAY - 1}" for value in values)
        for name, values in series.items()
    }
    return {
        "interval": "5m",
        "input_series": [{"series": name, "values": values} for name, values in written.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{DAYS * 24 - 1}h",
                "alertname": alert,
                "exp_alerts": [expected(alert, fires[alert], source)] if alert in fires else [],
            }
            for alert in rules()
        ],
    }


def of_prometheus(series: str, source: str) -> str:
    """The name and labels of a series, as Prometheus stores it."""
    name, labels = series.removesuffix("}").split("{")
    pairs = stored(dict(yaml.safe_load(f"{{{labels.replace('=', ': ')}}}")), source).items()
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in pairs)}}}"


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


def test_no_training_for_a_month_is_told_and_no_delivery_without_sinks_is_not(
    promtool: str, tmp_path: Path
) -> None:
    """The last training, two days before this month, promoted its model. Later, the last sink was removed."""
    changed = {
        PROMOTED: steady(1),
        EVALUATED: steady(-2 * DAY_S),
        DELIVERED: nightly(60, until=DAYS - 5),
        RAN: nightly(120),
    }
    passes(promtool, tmp_path, month(GOOD | changed, {"NightrankNothingPromoted": {}}))


@pytest.mark.parametrize(
    "last, alerts",
    [
        ([None], []),
        ([None] * 5, []),
        ([600.0], ["NightrankListsShrank"]),
        ([None, 600.0], ["NightrankListsShrank"]),
    ],
)
def test_lists_of_a_failed_run_have_not_shrunk(
    promtool: str, tmp_path: Path, last: list[float | None], alerts: list[str]
) -> None:
    """`last` has the rows of the last days; None for a day on which score_daily failed."""
    values = []
    for rows in [1000.0, *last]:
        exit_code, rows_out = (4, 0) if rows is None else (0, int(rows))
        began, ended = "2026-01-09T03:00:00Z", "2026-01-09T03:05:00Z"
        run = RunRecord(
            "r", "score_daily", "shop", "2026-01-08", began, ended, 300.0, exit_code, rows_out=rows_out
        )
        expose(run, Watch(textfile_folder=str(tmp_path)))
        exported = "".join(path.read_text() for path in tmp_path.glob("*.prom"))
        (value,) = re.findall(r"^nightrank_rows_out{.*} (.+)$", exported, re.MULTILINE)
        values.append(float(value))
    series = GOOD | {ROWS_OUT: steady(1000, *values[1:])}
    passes(promtool, tmp_path, month(series, dict.fromkeys(alerts, OF_JOB)))


@pytest.mark.parametrize("source", SOURCES[1:])
def test_the_rules_also_fire_on_what_a_push_gateway_has(promtool: str, tmp_path: Path, source: str) -> None:
    """A month in which all goes wrong that can go wrong at the same time."""
    others = {"NightrankBadConfiguration", "NightrankBadData", "NightrankDeliveryBehind"}
    together = {alert: bad for alert, bad in BAD.items() if alert not in others}
    series = GOOD | {name: values for changed, _ in together.values() for name, values in changed.items()}
    passes(
        promtool,
        tmp_path,
        month(series, {alert: labels for alert, (_, labels) in together.items()}, source),
    )


def test_prometheus_stores_a_scraped_series_with_these_labels(tmp_path: Path) -> None:
    """A server scrapes the metrics of a failed run. The rules see the labels of the tests above."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("prometheus is not on PATH (Debian: apt-get install prometheus)")
    began, ended = "2026-01-09T03:00:00Z", "2026-01-09T03:05:00Z"
    record = RunRecord("r", "score_daily", "shop", "2026-01-08", began, ended, seconds=300.0, exit_code=2)
    text = run_text(record).encode()

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Nothing on standard error."""

    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{exporter.server_port}"
        scraped = {"job_name": TARGET["job"], "static_configs": [{"targets": [target]}]}
        settings = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
        (tmp_path / "prometheus.yaml").write_text(
            yaml.safe_dump({"global": settings, "rule_files": [str(RULES)], "scrape_configs": [scraped]})
        )
        command = [prometheus, f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}"]
        command += [f"--web.listen-address=127.0.0.1:{port}"]
        query = urllib.parse.quote('ALERTS{alertname="NightrankBadConfiguration"}')
        address = f"http://127.0.0.1:{port}/api/v1/query?query={query}"
        found: list[Any] = []

        def fires() -> bool:
            try:
                found[:] = json.load(urllib.request.urlopen(address))["data"]["result"]
            except OSError:  # the server is not ready yet
                return False
            return bool(found)

        with process(command, tmp_path / "prometheus.log", fires):
            (alert,) = found
        exporter.shutdown()
    labels = {**stored(OF_JOB, "text file"), "instance": target, "severity": "page"}
    known = {"__name__": "ALERTS", "alertname": "NightrankBadConfiguration", "alertstate": "firing"}
    assert alert["metric"] == {**labels, **known}
