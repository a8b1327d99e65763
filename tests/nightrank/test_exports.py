"""Exports of a real champion: the job, the facade, and the examples of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import ConfigError
from conf.stage_types import ServingExperiment
from jobs import export_model
from tests.nightrank.conftest import RUN_DATE, World
from tests.processes import ROOT
from training.registry.served_experiments import ServedExperiment

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
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = ["--config", str(world.config), "--run-date", RUN_DATE, "--output", str(tmp_path / "out")]
    words += ["--formats", "int8"]
    assert export_model.main(words) == 0
    done = capsys.readouterr()
    summary = json.loads(done.out.splitlines()[-1])
    assert summary["model_version"] == world.lake.champion().version
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "export.json",
        "ranker.int8.onnx",
        "ranker.onnx",
        "ranker.pt2",
    ]
    assert "torchvision" not in done.err + caplog.text
    assert "ranker.onnx, ranker.pt2   probability, differs from the model by at most" in done.out
    assert "ranker.int8.onnx   probability, differs on average by" in done.out
    assert export_model.main(words) == 2
    shown = capsys.readouterr().err
    assert "exists already" in shown
    assert "Traceback" not in shown


def test_the_job_compiles_programs_and_says_why_it_cannot(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message of a missing compiler: tests/training/test_export.py."""

    def fails(model: object, folder: str, formats: object, *, compiled: bool) -> None:
        assert (folder, compiled) == (str(tmp_path / "new"), True)
        raise ConfigError("ranker cannot be compiled: No working C++ compiler", "install a C++ compiler")

    monkeypatch.setattr(export_model, "export", fails)
    words = ["--config", str(world.config), "--run-date", RUN_DATE, "--output", str(tmp_path / "new")]
    assert export_model.main([*words, "--compiled"]) == 2
    assert "ranker cannot be compiled: No working C++ compiler" in capsys.readouterr().err


def test_the_job_adds_the_model_to_a_model_repository(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run adds nothing. The model of a treatment is added and withdrawn with its experiment."""
    words = ["--config", str(world.config), "--run-date", RUN_DATE, "--output", str(tmp_path / "out")]
    for _ in range(2):
        assert export_model.main([*words, "--triton"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "version 1 of the ensemble nightrank" in lines[0]
        assert json.loads(lines[-1])["model_version"] == world.lake.champion().version
    assert sorted(path.name for path in (tmp_path / "out/ranker").iterdir()) == ["1", "config.pbtxt"]
    champion = world.lake.champion(use_refit=False).version
    experiment = ServingExperiment(name="e", share=0.5, start=RUN_DATE, model=champion)
    folder = f"{world.root}/models/generated/{champion}"
    running = ServedExperiment(experiment, champion, folder)
    with monkeypatch.context() as patch:
        patch.setattr(export_model, "served_experiment", lambda *_: running)
        assert export_model.main([*words, "--triton"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"model {champion} in {tmp_path}/out: version 2 of the ensemble nightrank_treatment" in lines
        assert json.loads(lines[-1])["treatment"]["model_version"] == champion
        assert json.loads(lines[-1])["model_version"] == world.lake.champion().version
    assert export_model.main([*words, "--triton"]) == 0
    assert "treatment" not in capsys.readouterr().out
    assert not (tmp_path / "out/nightrank_treatment").exists()
    assert [path.name for path in (tmp_path / "out/ranker/1").iterdir()] == ["ranker.onnx"]
    assert export_model.main([*words, "--triton", "--formats", "int8"]) == 2
    assert "--formats int8 has no effect with --triton" in capsys.readouterr().err
    assert export_model.main([*words, "--triton", "--compiled"]) == 2
    assert "--compiled has no effect with --triton" in capsys.readouterr().err
    assert export_model.main([*words, "--online"]) == 2
    assert "--online has no effect without --triton" in capsys.readouterr().err
