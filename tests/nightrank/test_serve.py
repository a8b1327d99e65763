"""`nightrank serve` answers requests for probabilities and lists, until a signal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient

import nightrank
from conf.load import load_config
from jobs import serve_model
from jobs.stages import serve_model as stage
from storage.run_context import RunContext
from tests.nightrank.conftest import RUN_DATE, World
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


def test_a_lake_that_cannot_be_read_is_no_unknown_user(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RunContext("serve_model", load_config(str(world.config)), RUN_DATE)
    served = stage.ServedModel(world.lake.champion(RUN_DATE))
    client = TestClient(stage.application(context, served))
    lost = nightrank.InfrastructureError("the disk is gone", "mount it")
    monkeypatch.setattr(served.model, "recommend", Mock(side_effect=lost))
    answer = client.get("/recommendations/u1")
    assert (answer.status_code, "the disk is gone" in answer.json()["detail"]) == (503, True)


def test_an_address_that_cannot_be_used_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert serve_model.main(words(world, port)) == 4
        assert f"--host 127.0.0.1 --port {port}: " in capsys.readouterr().err
    assert serve_model.main(words(world, 70_000)) == 2
    assert "correct --host or --port" in capsys.readouterr().err
