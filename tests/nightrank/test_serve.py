"""`nightrank serve` answers requests for probabilities and lists, until a signal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

import nightrank
from conf.load import load_config
from jobs import serve_model
from storage.run_context import RunContext
from tests.certificates import certificate_in
from tests.nightrank.conftest import COLUMNS, RUN_DATE, World
from tests.processes import ROOT, die_with_parent

pytestmark = pytest.mark.processes


def words(world: World, port: int) -> list[str]:
    return ["--config", str(world.config), "--run-date", RUN_DATE, "--port", str(port)]


def answered(request: Request | str) -> tuple[int, Any]:
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_probabilities_and_lists_are_those_of_the_model(world: World) -> None:
    model = nightrank.open(world.root, config=world.config).champion(RUN_DATE)
    rows = world.raw_rows().head(5).drop(columns="label")
    users = world.lake.recommendations(RUN_DATE).pandas()["user_id"].unique()
    command = [sys.executable, ROOT / "jobs/serve_model.py", *words(world, 0)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent
    ) as server:
        assert server.stdout is not None
        started = server.stdout.readline()
        assert f"model {model.version} of {RUN_DATE} answers at http://127.0.0.1:" in started
        address = started.split()[6].rstrip(";")
        with urlopen(f"{address}/health", timeout=60) as health:
            assert health.status == 200

        def invoke(frame: pd.DataFrame) -> tuple[int, Any]:
            split = frame.astype(object).where(frame.notna(), None).to_dict(orient="split", index=False)
            body = json.dumps({"dataframe_split": split}).encode()
            return answered(Request(f"{address}/invocations", body, {"Content-Type": "application/json"}))

        status, result = invoke(rows)
        scores = pd.DataFrame(result["predictions"]).to_numpy().ravel()
        assert status == 200
        np.testing.assert_allclose(scores, model.score(rows), rtol=1e-6)
        status, result = invoke(rows.drop(columns="C3"))
        assert (status, "the rows lack the columns ['C3']" in result["message"]) == (400, True)

        expected = model.recommend(users[:1], 4).drop_columns(["user_id"]).to_pylist()
        assert answered(f"{address}/recommendations/{users[0]}?k=4") == (200, expected)
        for path, code, text in (
            ("nobody", 404, "user 'nobody' has no candidates on 2026-01-04"),
            (f"{users[0]}?k=0", 400, "k=0 is smaller than 1"),
        ):
            status, result = answered(f"{address}/recommendations/{path}")
            assert (status, text in result["detail"]) == (code, True)
        server.send_signal(signal.SIGTERM)
        output, errors = server.communicate(timeout=60)
    assert (server.returncode, errors) == (0, "")
    summary = json.loads(output.splitlines()[-1])
    assert (summary["model_version"], summary["scored_rows"], summary["lists"]) == (model.version, 5, 1)


@pytest.fixture(scope="module")
def served(world: World) -> serve_model.ServedModel:
    return serve_model.ServedModel(world.lake.champion(RUN_DATE))


@pytest.fixture(scope="module")
def client(world: World, served: serve_model.ServedModel) -> Iterator[TestClient]:
    context = RunContext("serve_model", load_config(str(world.config)), RUN_DATE)
    application = serve_model.application(
        context, served, serve_model.ServeOptions("127.0.0.1", 0, max_k=20), None
    )
    yield TestClient(application)
    application.close()


def test_a_lake_that_cannot_be_read_is_no_unknown_user(
    client: TestClient, served: serve_model.ServedModel, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = nightrank.InfrastructureError("the disk is gone", "mount it")
    monkeypatch.setattr(served.model, "recommend", Mock(side_effect=lost))
    monkeypatch.setattr(served.model, "score", Mock(side_effect=lost))
    answer = client.get("/recommendations/u1")
    assert (answer.status_code, "the disk is gone" in answer.json()["detail"]) == (503, True)
    rows = {"dataframe_records": [{"C1": "a"}]}
    assert client.post("/invocations", json=rows).status_code == 503


RECORD = {name: 1 if name.startswith("I") else "a" for name in COLUMNS if name != "label"}


def bodies() -> Iterator[tuple[str, bytes]]:
    """Bodies that are not rows of the model, by what is wrong with them."""
    yield "deep lists", b"[" * 1_000_000
    yield "deep objects", b'{"dataframe_records":' * 100_000
    yield "deep value", b'{"dataframe_records": [{"C1": ' + b"[" * 900 + b"]" * 900 + b"}]}"
    yield "bytes", b"\xff\xfe\x00"
    yield "empty", b""
    yield "long integer", b'{"dataframe_records": [{"I1": ' + b"9" * 5000 + b"}]}"
    others: list[Any] = [
        None,
        5,
        [],
        {},
        "x",
        {"inputs": [1]},
        {"dataframe_split": 1, "dataframe_records": 1},
    ]
    others += [{"dataframe_records": rows} for rows in (None, 1, {}, [], [1], [[]], [None], [{}])]
    splits: list[Any] = [None, [], {}, {"columns": ["C1"]}, {"columns": 1, "data": [[1]]}]
    splits += [{"columns": ["C1", "C1"], "data": [[1, 2]]}, {"columns": ["C1"], "data": [[1, 2]]}]
    splits += [{"columns": ["C1"], "data": [["a"]], "more": 1}, {"columns": [1], "data": [[1]]}]
    others += [{"dataframe_split": content} for content in splits]
    values: list[Any] = [{}, {"a": 1}, [], [[]], [1, "a"], True, "text", 10**30, 1e400, [None], 0.5]
    others += [{"dataframe_records": [{**RECORD, "I1": value}]} for value in values]
    others += [{"dataframe_records": [{**RECORD, "C1": value}]} for value in values if value != "text"]
    others += [{"dataframe_records": [{**RECORD, "I1": 1}, {**RECORD, "I1": "a"}]}]
    others += [{"dataframe_records": [{}] * 100_001}]
    for value in others:
        yield json.dumps(value)[:200], json.dumps(value).encode()


@pytest.mark.parametrize(
    "body", [pytest.param(body, id=f"{place}") for place, (_, body) in enumerate(bodies())]
)
def test_no_body_is_an_internal_error(client: TestClient, body: bytes) -> None:
    """A few of them are rows after all, such as whole numbers as texts."""
    answer = client.post("/invocations", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400), answer.text
    assert len(answer.text) < 4000


def test_a_body_needs_a_type_and_a_list_a_length_within_the_limit(client: TestClient) -> None:
    body = json.dumps({"dataframe_records": [RECORD]}).encode()
    for headers in ({}, {"Content-Type": "text/csv"}, {"Content-Type": "application/vnd.apache.parquet"}):
        answer = client.post("/invocations", content=body, headers=headers)
        assert (answer.status_code, "Content-Type" in answer.json()["message"]) == (415, True)
    typed = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post("/invocations", content=body, headers=typed).status_code == 200
    for k in ("21", "9" * 4000, "x", "-1", "1.5", ""):
        answer = client.get("/recommendations/u1", params={"k": k})
        assert (answer.status_code, answer.json()["detail"].startswith("k=")) == (400, True)


def test_many_columns_that_the_model_does_not_read_cost_no_memory(client: TestClient) -> None:
    """A frame of these rows would have 25 million cells."""
    records = [{**RECORD, f"x{place}": 1} for place in range(5_000)]
    answer = client.post("/invocations", json={"dataframe_records": records})
    assert len(answer.json()["predictions"]) == 5_000


def test_a_record_must_have_the_columns_of_the_other_records() -> None:
    lacking = {name: value for name, value in RECORD.items() if name != "I1"}
    body = json.dumps({"dataframe_records": [RECORD, lacking]}).encode()
    with pytest.raises(nightrank.DataError, match="row 1 of dataframe_records lacks the column I1, which"):
        serve_model.rows_of(body, list(RECORD))
    null = json.dumps({"dataframe_records": [RECORD, {**lacking, "I1": None}]}).encode()
    assert serve_model.rows_of(null, list(RECORD)).column("I1").to_pylist() == [1, None]
    assert (
        "I1"
        not in serve_model.rows_of(
            json.dumps({"dataframe_records": [lacking]}).encode(), ["I1", "C1"]
        ).column_names
    )


def test_pages_and_metrics(client: TestClient) -> None:
    page = client.get("/")
    assert "<title>Nightrank: " in page.text
    assert "//" not in page.text  # no address of another server
    assert "script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert client.get("/docs").status_code == 404
    before = client.get("/metrics").text
    assert client.get("/nowhere/at/all").status_code == 404
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    counted = 'nightrank_serve_requests_total{route="other",status="404"}'
    values = [
        float(next((line.split()[-1] for line in text.splitlines() if line.startswith(counted)), 0))
        for text in (before, metrics.text)
    ]
    assert values[1] == values[0] + 1


@pytest.mark.parametrize("missing", ["--token-file", "--tls-cert"])
def test_other_machines_need_a_token_and_tls(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    certificate, key = certificate_in(tmp_path)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    options = {
        "--token-file": ["--token-file", str(tmp_path / "token")],
        "--tls-cert": ["--tls-cert", certificate, "--tls-key", key],
    }
    other_options = [word for name, part in options.items() if name != missing for word in part]
    assert serve_model.main([*words(world, 0), "--host", "0.0.0.0", *other_options]) == 2
    assert f"other machines can connect to 0.0.0.0, and {missing}" in capsys.readouterr().err


def test_a_token_and_a_certificate_that_cannot_be_used_are_refused(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = certificate_in(tmp_path)
    (tmp_path / "short").write_text("short")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for given, message in (
        (["--token-file", str(tmp_path / "short")], "has no token of at least 16"),
        (["--token-file", str(tmp_path / "binary")], "cannot be read"),
        (["--token-file", str(tmp_path / "none")], "cannot be read"),
        (["--tls-cert", certificate], "--tls-cert and --tls-key must be used together"),
        (["--tls-cert", key, "--tls-key", certificate], "cannot be used"),
    ):
        assert serve_model.main([*words(world, 0), *given]) == 2
        assert message in capsys.readouterr().err


def test_an_address_that_cannot_be_used_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert serve_model.main(words(world, port)) == 4
        assert f"--host 127.0.0.1 --port {port}: " in capsys.readouterr().err
    assert serve_model.main(words(world, 70_000)) == 2
    assert "correct --host or --port" in capsys.readouterr().err
