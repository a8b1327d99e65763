"""Exports of a real champion: the job, the facade, and the examples of the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jobs import export_model
from tests.nightrank.conftest import RUN_DATE, World
from tests.processes import ROOT
from training.export.compiled_programs import instruction_set, load_compiled

pytestmark = pytest.mark.processes


def test_the_examples_of_the_page_run(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo_out").symlink_to(world.folder / "demo_out")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/exports.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "docs/exports.md", "exec"), names)
    np.testing.assert_allclose(names["probabilities"], names["model"].score(names["raw"]), atol=1e-5)
    assert names["description"]["model_version"] == names["model"].version


def test_the_job_exports_the_model_that_serves(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(world.config), "--run-date", RUN_DATE, "--output", str(tmp_path / "out")]
    words += ["--formats", "int8", "--compiled"]
    command = [sys.executable, str(ROOT / "jobs/export_model.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["model_version"] == world.lake.champion().version
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "export.json",
        "ranker.aotinductor.pt2",
        "ranker.int8.onnx",
        "ranker.onnx",
        "ranker.pt2",
    ]
    assert "torchvision" not in done.stderr
    assert "ranker.onnx, ranker.pt2, ranker.aotinductor.pt2   probability, differs from the" in done.stdout
    assert "ranker.int8.onnx   probability, differs on average by" in done.stdout
    model, raw = world.lake.champion(), world.raw_rows().head(77)
    program = load_compiled(tmp_path / "out/ranker.aotinductor.pt2")
    probabilities = program(*map(torch.from_numpy, model.inputs(raw).values()))
    np.testing.assert_allclose(probabilities, model.score(raw), atol=1e-5)
    assert json.loads((tmp_path / "out/export.json").read_text())["compiled_for"] == instruction_set()
    assert export_model.main(words) == 2
    shown = capsys.readouterr().err
    assert "exists already" in shown
    assert "Traceback" not in shown


def test_the_job_adds_the_model_to_a_model_repository(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run adds nothing."""
    words = ["--config", str(world.config), "--run-date", RUN_DATE, "--output", str(tmp_path / "out")]
    for _ in range(2):
        assert export_model.main([*words, "--triton"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "version 1 of the ensemble nightrank" in lines[0]
        assert json.loads(lines[-1])["model_version"] == world.lake.champion().version
    assert sorted(path.name for path in (tmp_path / "out/ranker").iterdir()) == ["1", "config.pbtxt"]
    assert [path.name for path in (tmp_path / "out/ranker/1").iterdir()] == ["ranker.onnx"]
    assert export_model.main([*words, "--triton", "--formats", "int8"]) == 2
    assert "--formats int8 has no effect with --triton" in capsys.readouterr().err
    assert export_model.main([*words, "--triton", "--compiled"]) == 2
    assert "--compiled has no effect with --triton" in capsys.readouterr().err
    assert export_model.main([*words, "--online"]) == 2
    assert "--online has no effect without --triton" in capsys.readouterr().err
