"""Lineage events that jobs send: OpenLineage's own client posts them to a server that records them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, DataError
from conf.load import load_config
from reporting.monitoring.run_observer import check_openlineage
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from tests.reporting.monitoring.openlineage import assert_valid
from tests.reporting.monitoring.test_observer import RUN_DATE, arguments, ended, only_record, work


@dataclass
class Server:
    """What a server got.

    Attributes:
        answer: the status that it returns.
        events: bodies of the requests.
        headers: their headers.
    """

    url: str = ""
    answer: int = 201
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def setting(self) -> str:
        return f"watch.openlineage={{type: http, url: {self.url}, retry: {{total: 1, backoff_factor: 0}}}}"


@contextmanager
def recording() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/api/v1/lineage"
            server.events.append(json.loads(body))
            server.headers.append(dict(self.headers))
            self.send_response(server.answer)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_a_job_sends_its_start_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__AUTH", '{"type": "api_key", "apiKey": "secret-7"}')
    started: list[str] = []

    def body(job: RunContext) -> JobSummary:
        started.extend(event["eventType"] for event in server.events)
        return work(job)

    with recording() as server:
        assert ended(body, arguments(tmp_path, server.setting())) == 0
    assert started == ["START"]
    start, end = server.events
    for event in server.events:
        assert [tag["key"] for tag in event["run"]["facets"].pop("tags")["tags"]] == [
            "openlineage_client_version"
        ]
        assert_valid(event)
    record = only_record(tmp_path)
    assert start["run"]["runId"] == end["run"]["runId"] == record.run_id
    assert start["job"]["name"] == end["job"]["name"] == "score_daily"
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["facets"]["nominalTime"]["nominalStartTime"] == f"{RUN_DATE}T00:00:00Z"
    assert (start["inputs"], start["outputs"]) == ([], [])
    for key in ("eventTime", "inputs", "outputs", "producer"):
        assert end[key] == record.lineage[key]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret-7"}
    assert "secret-7" not in json.dumps(record.to_json())


def test_a_failed_job_sends_its_error(tmp_path: Path) -> None:
    def body(_: RunContext) -> JobSummary:
        raise DataError("empty day", "deliver it")

    with recording() as server:
        assert ended(body, arguments(tmp_path, server.setting())) == 3
    assert [event["eventType"] for event in server.events] == ["START", "FAIL"]
    assert server.events[1]["run"]["facets"]["errorMessage"]["message"] == "empty day"


@pytest.mark.parametrize("answer", [400, 503, None])
def test_a_server_that_fails_or_is_down_stops_no_job(tmp_path: Path, answer: int | None) -> None:
    with recording() as server:
        if answer is not None:
            server.answer = answer
            assert ended(work, arguments(tmp_path, server.setting())) == 0
    if answer is None:  # nobody listens any more
        assert ended(work, arguments(tmp_path, server.setting())) == 0
    record = only_record(tmp_path)
    assert record.exit_code == 0
    assert any("the lineage event that starts this run is not sent" in warning for warning in record.warnings)


def test_other_transports_of_the_client_work(tmp_path: Path) -> None:
    file = tmp_path / "events"
    setting = f"watch.openlineage={{type: file, log_file_path: {file}, append: true}}"
    assert ended(work, arguments(tmp_path / "lake", setting)) == 0
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"]


@pytest.mark.parametrize(
    "transport, message",
    [
        ({"type": "htpp", "url": "http://x"}, "the transport 'htpp' cannot be used"),
        ({"type": "http"}, "the transport 'http' cannot be used"),
        ({"type": "kafka", "topic": "t", "config": {}}, "the transport 'kafka' cannot be used"),
    ],
)
def test_a_transport_that_cannot_be_used_is_an_error_before_any_work(
    transport: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_openlineage(transport)
    assert "OpenLineage's documentation" in caught.value.remedy


def test_a_job_checks_its_transport(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(work, arguments(tmp_path, "watch.openlineage={type: carrier.Pigeon}")) == 2
    written = capsys.readouterr().err
    assert written.count("watch.openlineage: the transport 'carrier.Pigeon' cannot be used") == 1
    assert "Traceback" not in written


@pytest.mark.parametrize(
    "value, message",
    [
        ("{url: http://x}", "must have the key `type`"),
        ("{type: http, url: http://x, auth: {type: api_key, apiKey: k}}", "OPENLINEAGE__TRANSPORT__AUTH"),
        ("http://x", "openlineage"),
    ],
)
def test_wrong_settings_are_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config("conf/datasets/generated.yaml", [f"watch.openlineage={value}"])
    assert "apiKey" not in str(caught.value)
