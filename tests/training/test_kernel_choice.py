"""train.kernels and score.kernels: kernels if Triton can run, else torch's operators and a warning."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from conf.errors import ConfigError
from conf.types import Score, Split, Train
from scoring.model.predictor import load_predictor
from scoring.requests import ModelRequest
from storage.paths import LakePaths
from tests.processes import ROOT
from tests.scoring.reference_scores import SPEC, write_model
from tests.training.feature_rows import Rows, make_spec, random_rows
from tests.training.feature_tables import make_config, publish_all
from tests.training.ranks_in_threads import on_ranks
from training import kernels
from training.collectives import Collectives
from training.embeddings.table import tables_of
from training.kernels import choice
from training.kernels.choice import compiler_problem, use_kernels
from training.loop import run
from training.loop.run import run_plan, train_in_process
from training.loop.training_plan import TrainPlan, make_plan
from training.registry.versions import model_version

pytestmark = pytest.mark.processes

HELD_OUT: tuple[tuple[Split, int], ...] = (("validation", 3), ("test", 4))
CPU, GPU = torch.device("cpu"), torch.device("cuda")
SETTING = "train.kernels"
# Whether Triton finds a compiler in each environment, and twice whether our check does, with its warnings.
_BOTH = """
import json, logging, os, subprocess, sys
from pathlib import Path
import torch
from triton.runtime.build import _build
from training.kernels import choice
warnings = []
choice.log.addFilter(lambda record: bool(warnings.append(record.getMessage())))
outcomes = {}
for kind, variables in json.loads(sys.argv[1]).items():
    os.environ.update(variables)
    choice._compile.cache_clear()
    choice._warn.cache_clear()
    warnings.clear()
    source = Path(sys.argv[2]) / "launcher.c"
    source.write_text("#include <Python.h>\\n#include <stdlib.h>\\nint launch(void) { return 0; }\\n")
    try:
        _build("launcher", str(source), sys.argv[2], [], [], [], [])
        built = True
    except (RuntimeError, OSError, subprocess.CalledProcessError):
        built = False
    ours = [choice.use_kernels("auto", torch.device("cuda"), "train.kernels") for _ in range(2)]
    outcomes[kind] = [built, *ours, list(warnings)]
print(json.dumps(outcomes))
"""
KINDS = ("as it is", "no compiler", "a compiler that fails", "a CC that is missing")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that interprets no kernels, and has warned of nothing yet."""
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    monkeypatch.delenv("CC", raising=False)
    choice._warn.cache_clear()


@pytest.fixture
def without_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_where_triton_can_compile_kernels_are_used(caplog: pytest.LogCaptureFixture) -> None:
    assert compiler_problem() is None
    assert use_kernels("auto", GPU, SETTING)
    assert use_kernels("triton", GPU, SETTING)
    assert not use_kernels("torch", GPU, SETTING)
    assert caplog.text == ""


def test_cpus_need_no_compiler_and_no_warning(
    without_compilers: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert not use_kernels("auto", CPU, SETTING)
    assert not use_kernels("torch", CPU, SETTING)
    assert caplog.text == ""
    with pytest.raises(ConfigError, match=r"score\.kernels=triton cannot be used on .* it needs a GPU"):
        use_kernels("triton", CPU, "score.kernels")


def test_without_a_compiler_auto_warns_once_and_triton_is_an_error(
    without_compilers: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not use_kernels("auto", GPU, SETTING)
        assert not use_kernels("auto", GPU, SETTING)
    (warning,) = caplog.records
    assert "there is no C compiler: CC is not set, and PATH has no gcc" in warning.getMessage()
    with pytest.raises(
        ConfigError, match=r"train\.kernels=triton cannot be used on .*: there is no C compiler"
    ) as caught:
        use_kernels("triton", GPU, SETTING)
    assert "--set train.kernels=auto" in caught.value.remedy
    assert "headers" in caught.value.remedy


def test_a_compiler_without_headers_or_that_does_not_start_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = choice._compile("gcc", str(tmp_path))
    assert outcome is not None
    assert str(tmp_path) in outcome
    assert "Python.h" in outcome
    monkeypatch.setenv("CC", "/no/such/cc")
    assert "the C compiler /no/such/cc does not start" in str(compiler_problem())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What _BOTH prints: a process with Triton's own code, which goes through all environments."""
    folder = tmp_path_factory.mktemp("compilers")
    for name in ("none", "failing"):
        (folder / name).mkdir()
    compiler = folder / "failing/gcc"
    compiler.write_text("#!/bin/sh\necho 'error: stdlib.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    path = os.environ["PATH"]
    variables = (
        {},
        {"PATH": str(folder / "none")},
        {"PATH": f"{folder}/failing:{path}"},
        {"PATH": path, "CC": "/no/such/cc"},
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("TRITON_INTERPRET", "CC"):
        environment.pop(name, None)
    kinds = json.dumps(dict(zip(KINDS, variables, strict=True)))
    command = [sys.executable, "-c", _BOTH, kinds, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("kind", KINDS)
def test_triton_itself_sees_what_is_missing(kind: str, outcomes: dict[str, Any]) -> None:
    works = kind == "as it is"
    *decisions, warnings = outcomes[kind]
    assert decisions == [works, works, works]
    assert len(warnings) == (not works)
    assert all("torch's operators are used instead of Triton's kernels" in text for text in warnings)


@pytest.mark.parametrize("section", [Train, Score])
def test_kernels_are_not_asked_of_a_cpu(section: Any) -> None:
    with pytest.raises(ValidationError, match="kernels=triton needs a GPU, but device=cpu is set"):
        section(kernels="triton", device="cpu")
    assert section().kernels == "auto"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are called, which run interpreted until the test ends."""
    called: list[str] = []

    def spied(name: str) -> Any:
        original = getattr(kernels, name)
        return lambda *arguments, **named: (called.append(name), original(*arguments, **named))[1]

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    for name in ("look_up", "interact", "update"):
        monkeypatch.setattr(kernels, name, spied(name))
    return called


def test_a_training_uses_kernels_as_configured(tmp_path: Path, calls: list[str]) -> None:
    """One version whichever, and measures that differ by rounding alone."""
    lake = LakePaths(str(tmp_path / "lake"))
    spec = make_spec(2, [5, 40])
    splits: dict[Split, dict[str, Rows]] = {"train": {"2026-01-02": random_rows(spec, 32, seed=0)}}
    splits |= {name: {f"2026-01-0{day}": random_rows(spec, 16, seed=day)} for name, day in HELD_OUT}
    dataset = publish_all(lake, "2026-01-05", spec, splits)
    losses = {}
    versions = set()
    for wanted in ("torch", "auto", "triton"):
        calls.clear()
        config = make_config(
            lake,
            model={"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [4]},
            train={
                "num_ranks": 1,
                "num_shards": 1,
                "global_batch_size": 16,
                "kernels": wanted,
                "baselines": [],
            },
        )
        plan = make_plan(config, lake, dataset)
        versions.add(model_version(config, "a digest", None))
        losses[wanted] = train_in_process(plan)["metrics"]["test"]["log_loss"]
        expected = set() if wanted == "torch" else {"look_up", "interact", "update"}
        assert set(calls) == expected, wanted
    assert losses["auto"] == losses["triton"] == pytest.approx(losses["torch"], rel=1e-4)
    assert len(versions) == 1


def plan_of_ranks(folder: Path) -> TrainPlan:
    """A training by two ranks in this process."""
    lake, spec = LakePaths(str(folder)), make_spec(2, [9, 40])
    days: dict[Split, dict[str, Rows]] = {"train": {"2026-01-02": random_rows(spec, 64, 2)}}
    days |= {split: {f"2026-01-0{day}": random_rows(spec, 24, day)} for split, day in HELD_OUT}
    dataset = publish_all(lake, "2026-01-04", spec, days)
    train = {"num_ranks": 2, "num_shards": 2, "global_batch_size": 16, "device": "cpu", "baselines": []}
    config = make_config(lake, model={"architecture": "logistic_regression"}, train=train)
    return make_plan(config, lake, dataset)


def test_ranks_use_kernels_only_if_all_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    can, used = [True, False], []
    monkeypatch.setattr(run, "use_kernels", lambda *_: can.pop())
    monkeypatch.setattr(run, "set_kernels", lambda model, use: used.append(use))
    plan = plan_of_ranks(tmp_path)
    with caplog.at_level(logging.WARNING):
        on_ranks(2, lambda collectives: run_plan(plan, collectives, CPU))
    assert not can
    assert used == [False, False]
    assert "all ranks use torch's operators, because only the ranks [" in caplog.text


def test_a_rank_that_must_use_kernels_but_cannot_ends_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    can = [True, False]

    def use(*_: object) -> bool:
        if can.pop():
            return True
        raise ConfigError("train.kernels=triton cannot be used on node-2", "install a compiler")

    monkeypatch.setattr(run, "use_kernels", use)
    plan = plan_of_ranks(tmp_path)

    def body(collectives: Collectives) -> str:
        with pytest.raises(
            ConfigError, match=r"rank .: train\.kernels=triton cannot be used on node-2"
        ) as caught:
            run_plan(plan, collectives, CPU)
        return caught.value.remedy

    assert on_ranks(2, body) == ["install a compiler"] * 2


def test_scoring_uses_kernels_as_configured(tmp_path: Path, calls: list[str]) -> None:
    path = write_model(tmp_path / "model", "dlrm")
    dense = torch.rand(5, len(SPEC.dense))
    categorical = torch.full((5, 4), 2)
    outcome = {}
    for wanted in ("torch", "auto", "triton"):
        calls.clear()
        request = ModelRequest(path, "cpu", 8, kernels=wanted)
        predictor = load_predictor(request, None, 1)
        outcome[wanted] = predictor.probabilities(dense, categorical)
        assert set(calls) == (set() if wanted == "torch" else {"look_up", "interact"}), wanted
    torch.testing.assert_close(outcome["auto"], outcome["torch"])
    torch.testing.assert_close(outcome["triton"], outcome["torch"])


def test_tables_as_bytes_follow_the_choice_too(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", "dlrm")
    request = ModelRequest(path, "cpu", 8, embeddings="int8", kernels="torch")
    tables = tables_of(load_predictor(request, None, 1).model)
    assert [table.may_use_kernels for table in tables.values()] == [False]
    with pytest.raises(ConfigError, match=r"score\.kernels=triton"):
        load_predictor(ModelRequest(path, "cpu", 8, kernels="triton"), None, 1)
