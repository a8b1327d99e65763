"""The GPU benchmarks without a GPU: all parts run with tiny shapes, and run_all.py collects and resumes them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import fbgemm, parity
from benchmarks.gpu.run_all import PARTS, Part, main, markdown, outcome, read_results, run
from benchmarks.gpu.setting import Setting
from training.embeddings.table import StackedEmbedding
from training.settings import known_architectures

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
# fbgemm_gpu is not in our environment: its releases belong to one release of torch each.
HERE = [name for name in PARTS if name != "fbgemm"]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU these are run in full")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The exit code and the results of a run of all parts."""
    folder = tmp_path_factory.mktemp("gpu")
    command = [sys.executable, str(ROOT / "benchmarks/gpu/run_all.py"), "--out", str(folder / "results")]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.stderr == ""
    assert all(f"{name}: done in" in done.stdout for name in HERE), done.stdout
    assert "fbgemm: not run, because packages are missing: fbgemm_gpu\n" in done.stdout
    return done.returncode, folder / "results"


@NO_GPU
def test_every_part_runs_and_measures_nothing(rehearsal: tuple[int, Path]) -> None:
    code, folder = rehearsal
    assert code == 0
    results = read_results(folder)
    assert list(results) == list(PARTS)
    for name in HERE:
        summary = results[name]["summary"]
        assert {"benchmark", "machine", "ours", "peers", "ratios"} <= summary.keys()
        assert summary["ratios"]
        if name == "roofline":
            continue
        assert set(summary["ratios"].values()) == {None}
        sections = [
            section.values() if isinstance(section, dict) else [section]
            for section in summary["ours"].values()
        ]
        figures = np.array([figure for section in sections for figure in section])
        assert all(math.isfinite(figure) for figure in figures)


@NO_GPU
def test_the_results_are_two_files(rehearsal: tuple[int, Path]) -> None:
    _, folder = rehearsal
    assert sorted(path.name for path in folder.iterdir()) == ["results.json", "results.md"]
    lines = (folder / "results.md").read_text()
    assert all(f"| {name} | done in" in lines for name in HERE)
    assert "| training_step | done in" in lines
    assert "not measured" in lines
    assert "GPU: none" in lines


@NO_GPU
def test_parts_with_a_result_are_not_run_again(
    rehearsal: tuple[int, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = rehearsal
    before = (folder / "results.json").read_bytes()
    assert main(["--out", str(folder)]) == 0
    missing = "fbgemm: not run, because packages are missing: fbgemm_gpu"
    shown = [line for line in capsys.readouterr().out.splitlines() if line not in ("fbgemm …", missing)]
    assert shown == [f"{name}: has a result" for name in HERE]
    assert (folder / "results.json").read_bytes() == before


def test_a_part_at_its_limit_fails_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = {"machine": {"date": "2026-01-04", "cpu": "c"}, "ratios": {}}
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    (tmp_path / "quick.py").write_text(f"print({json.dumps(summary)!r})")
    folder = os.path.relpath(tmp_path, ROOT / "benchmarks/gpu")
    monkeypatch.setitem(PARTS, "kernels", Part(f"{folder}/slow", needs=()))
    monkeypatch.setitem(PARTS, "roofline", Part(f"{folder}/quick", needs=()))
    assert main(["--out", str(tmp_path), "--only", "kernels", "roofline", "--limit", "3"]) == 1
    results = read_results(tmp_path)
    assert results["kernels"]["exit_code"] == -signal.SIGKILL
    assert "at its time limit" in outcome(results["kernels"])
    assert results["kernels"]["seconds"] < 60
    assert set(results) == {"kernels", "roofline"}
    assert results["roofline"]["ok"]
    (tmp_path / "slow.py").write_text((tmp_path / "quick.py").read_text())
    assert main(["--out", str(tmp_path), "--only", "kernels"]) == 0
    assert read_results(tmp_path)["kernels"]["ok"]


def test_a_part_without_its_packages_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "scoring", Part("scoring", needs=("torch", "no_such_package")))
    assert main(["--out", str(tmp_path), "--only", "scoring"]) == 0
    result = read_results(tmp_path)["scoring"]
    assert outcome(result) == "not run, because packages are missing: no_such_package"
    assert "| scoring | not run, because packages are missing: no_such_package | | |" in markdown(
        {"scoring": result}
    )


def test_a_script_that_fails_shows_its_output(tmp_path: Path) -> None:
    result = run(Part("no_such_script", needs=()), 60)
    assert (result["ok"], result["failed"], result["exit_code"]) == (False, True, 2)
    assert "No such file" in result["output"]
    assert outcome(result) == "failed with exit code 2"


def test_parity_covers_every_architecture_and_notices_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(parity.PRESETS) == set(known_architectures())
    original = StackedEmbedding.forward

    def wrong(table: StackedEmbedding, ids: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = original(table, ids)
        return vectors * 1.5 if table.may_use_kernels else vectors

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("training.kernels.INTERPRETED", False)
    monkeypatch.setattr(parity, "PRESETS", {"deepfm": "deepfm_small"})
    monkeypatch.setattr(StackedEmbedding, "forward", wrong)
    assert parity.main([]) == 1
    summary: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["ours"]["deepfm"]["kernels"] > parity.TOLERANCE
    assert summary["ours"]["deepfm"]["torch"] == 0


class PlainTables:
    """The part of FBGEMM that the part fbgemm calls, by torch's operators in float64."""

    rate = fbgemm.RATE

    def __init__(
        self, setting: Setting, batches: Sequence[torch.Tensor], gradient: torch.Tensor, dtype: torch.dtype
    ) -> None:
        tables = [fbgemm.drawn_rows(setting, number) for number in range(len(setting.cardinalities))]
        starts = torch.tensor([0, *setting.cardinalities[:-1]]).cumsum(0)
        self._rows, self._places, self._dtype = torch.cat(tables), [ids + starts for ids in batches], dtype
        self._gradient = gradient
        self._sums = torch.zeros(len(self._rows), 1, dtype=torch.float64)

    def forward(self, number: int) -> torch.Tensor:
        return self._rows[self._places[number]].to(self._dtype)

    def step(self, number: int) -> None:
        summed = torch.zeros(self._rows.shape, dtype=torch.float64)
        summed.index_add_(0, self._places[number].flatten(), self._gradient.flatten(0, 1).double())
        self._sums += summed.square().mean(dim=1, keepdim=True)
        scale = self.rate / (self._sums.sqrt() + 1e-8)
        self._rows = (self._rows.double() - summed * scale).float()

    def rows(self, places: torch.Tensor) -> torch.Tensor:
        return self._rows[places]


@NO_GPU
def test_the_comparison_with_fbgemm_notices_rows_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("training.kernels.INTERPRETED", False)
    setting = fbgemm.read_setting(None, [])
    ours, peers = fbgemm.compare(setting, torch.float32, PlainTables)
    assert ours.keys() == peers.keys() == {"forward", "step"}
    monkeypatch.setattr(PlainTables, "rate", fbgemm.RATE * 1.01)
    with pytest.raises(AssertionError, match="not close"):
        fbgemm.compare(setting, torch.float32, PlainTables)


@NO_GPU
def test_fbgemm_that_cannot_be_imported_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("training.kernels.INTERPRETED", False)
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", None)
    assert fbgemm.main([]) == 0
    assert capsys.readouterr().out.startswith("fbgemm_gpu cannot be imported, so nothing was compared: ")
