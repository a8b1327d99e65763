"""Metrics of a run: text that Prometheus's own parser reads, files replaced in one step, a push over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conf.errors import ConfigError
from conf.load import load_config
from conf.types import Watch
from reporting.monitoring.prometheus import METRICS, expose, run_text, success_text
from reporting.monitoring.run_record import RunRecord

HOSTILE = 'a "quoted" back\\slash\nand a line'
SPARK = {
    "tasks": 12,
    "failed_tasks": 1,
    "task_s": 3.5,
    "gc_s": 0.25,
    "input_bytes": 100,
    "output_bytes": 50,
    "shuffle_write_bytes": 25,
    "spilled_bytes": 0,
}


def record(**values: Any) -> RunRecord:
    columns: dict[str, Any] = {
        "run_id": "r",
        "job": "score_daily",
        "config": "shop",
        "run_date": "2026-01-08",
        "started_at": "2026-01-09T03:00:00Z",
        "ended_at": "2026-01-09T03:05:00Z",
        "seconds": 300.5,
        "exit_code": 0,
        "rows_in": 10,
        "rows_out": 9,
        "dropped": {HOSTILE: 1},
        "phases": {"session": 1.5, "score": 4.0},
        "facts": {"coverage": 0.5, "promoted": True, "version": "abc", "days": [1], "auc": None},
        "warning_count": 2,
        "core_s": 600.0,
        "cost": 0.01,
        "currency": "EUR",
        "spark": SPARK,
    }
    return RunRecord(**{**columns, **values})


def parsed(text: str) -> dict[tuple[str, str], float]:
    """(metric, the value of its last label) → value, read by Prometheus's parser."""
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation == METRICS[family.name]
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("config"), labels.pop("nightrank_job")) == ("shop", "score_daily")
            samples[sample.name, next(iter(labels.values()), "")] = sample.value
    return samples


def test_every_metric_is_written_and_read_back() -> None:
    text = run_text(record()) + success_text(record())
    samples = parsed(text)
    assert {name for name, _ in samples} == set(METRICS)
    assert samples["nightrank_rows_dropped", HOSTILE] == 1
    assert samples["nightrank_phase_seconds", "score"] == 4.0
    assert samples["nightrank_run_seconds", ""] == 300.5
    assert samples["nightrank_cost", "EUR"] == 0.01
    assert samples["nightrank_spark_task_seconds", ""] == 3.5
    assert samples["nightrank_run_end_timestamp_seconds", ""] == 1767927900
    assert samples["nightrank_run_date_timestamp_seconds", ""] == 1767830400
    assert {label for name, label in samples if name == "nightrank_fact"} == {"coverage", "promoted"}
    assert text.endswith("\n")


def test_a_run_without_session_and_price_leaves_those_metrics_out() -> None:
    samples = parsed(run_text(record(spark=None, cost=None, exit_code=3, facts={})))
    assert samples["nightrank_run_success", ""] == 0
    assert samples["nightrank_run_exit_code", ""] == 3
    names = {name for name, _ in samples}
    assert not {name for name in names if "spark" in name or "cost" in name or "fact" in name}


def test_a_failed_run_replaces_the_last_run_and_leaves_the_last_success(tmp_path: Path) -> None:
    watch = Watch(textfile_folder=str(tmp_path))
    expose(record(), watch)
    expose(record(exit_code=4, ended_at="2026-01-10T03:00:00Z", rows_in=0, rows_out=0, dropped={}), watch)
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"nightrank_shop_score_daily.prom", "nightrank_shop_score_daily.success.prom"}
    samples = parsed("".join(path.read_text() for path in tmp_path.iterdir()))
    assert samples["nightrank_run_success", ""] == 0
    assert samples["nightrank_rows_out", ""] == 9
    assert samples["nightrank_last_success_timestamp_seconds", ""] == 1767927900


def test_a_collector_never_sees_half_a_file(tmp_path: Path) -> None:
    watch, done = Watch(textfile_folder=str(tmp_path)), threading.Event()
    expose(record(), watch)

    def write_often() -> None:
        for phases in range(20):
            expose(record(phases={f"p{index}": 1.0 for index in range(phases * 20)}), watch)
        done.set()

    writer = threading.Thread(target=write_often)
    writer.start()
    while not done.is_set():
        for path in tmp_path.glob("*.prom"):  # what node_exporter takes up
            text = path.read_text()
            assert text.endswith("\n")
            assert parsed(text)
    writer.join()


@contextmanager
def gateway(status: int) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """An HTTP server in the push gateway's place: its address, and (method, path, body) of what it got."""
    got: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            got.append((self.command, self.path, body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing on standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def held(requests: list[tuple[str, str, str]]) -> dict[tuple[str, str], float]:
    """The metrics that a push gateway has after some requests. PUT replaces the metrics of a whole group."""
    groups = {}
    for method, path, body in requests:
        assert method == "PUT"
        groups[path] = parsed(body)
    return {name: value for group in groups.values() for name, value in group.items()}


def test_a_push_gateway_gets_the_same_metrics_below_the_job() -> None:
    with gateway(202) as (address, got):
        expose(record(), Watch(push_gateway=f"{address}/"))
    assert [path for _, path, _ in got] == [
        "/metrics/job/score_daily/config/shop",
        "/metrics/job/score_daily/config/shop/group/last_success",
    ]
    assert held(got) == parsed(run_text(record()) + success_text(record()))


def test_a_push_gateway_keeps_only_the_last_run_and_the_last_success() -> None:
    """Metrics that a run does not have, such as dropped rows, do not stay from the run before."""
    failed = record(exit_code=4, ended_at="2026-01-10T03:00:00Z", dropped={}, facts={}, spark=None)
    with gateway(202) as (address, got):
        for run in (record(), failed):
            expose(run, Watch(push_gateway=address))
    assert held(got) == parsed(run_text(failed) + success_text(record()))


def test_a_push_gateway_that_refuses_is_an_error_of_the_push(tmp_path: Path) -> None:
    with gateway(500) as (address, _), pytest.raises(OSError, match="500"):
        expose(record(), Watch(push_gateway=address))


@pytest.mark.parametrize(
    "setting, problem",
    [
        ("watch.push_gateway=http://me:secret@host:9091", "without user, password"),
        ("watch.push_gateway=host:9091", "http(s)://host:port"),
        ("watch.textfile_folder=s3a://bucket/x", "local folder"),
        ("watch.core_hour_price=-1", "watch.core_hour_price=-1"),
        ("watch.currency=euro", "watch.currency='euro'"),
        ("watch.folder=x", "unknown key watch.folder"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(setting: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("conf/datasets/generated.yaml", [setting])
    assert problem in caught.value.problem
    assert "secret" not in str(caught.value)
