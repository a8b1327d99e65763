"""A run in one application is killed in several ways. After a last rerun, its lake equals that of an isolated run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.job_processes import (
    MARK,
    ROOT,
    RUN_DATE,
    marked,
    published,
    wait_until_gone,
    write_config,
    write_log,
)
from tests.processes import environment, wait_for

pytestmark = [pytest.mark.large, pytest.mark.processes, pytest.mark.timeout(1500)]


@dataclass
class Nightly:
    """A process of nightly, with a mark in the environment of all processes that it starts."""

    config: Path
    more: tuple[str, ...] = ()
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        words = ["--config", str(self.config), "--run-date", RUN_DATE, "--retrain", *self.more]
        self.process = subprocess.Popen(
            [sys.executable, "jobs/nightly.py", *words],
            cwd=ROOT,
            env={**environment(), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ended(self) -> tuple[int, str]:
        """Waits for the end of all its processes. Returns the exit code and the output."""
        output, _ = self.process.communicate(timeout=480)
        wait_until_gone(self.mark)
        return self.process.returncode, output

    def in_phase(self, stage: str, phase: str) -> None:
        """Waits until a stage of this run has begun a phase."""
        log = self.config.with_suffix("") / f"logs/dt={RUN_DATE}/{stage}.log"

        def begun() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            return log.exists() and f"nightrank: {phase} …" in log.read_text(errors="replace")

        wait_for(f"{phase} of {stage}", begun, 480)

    def kill(self, words: str) -> None:
        """Sends SIGKILL to its process whose command contains these words."""
        (pid,) = [pid for pid, command in marked(self.mark) if words in command]
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a raw log, and the lake of a run whose stages had processes of their own."""
    folder = tmp_path_factory.mktemp("application")
    write_log(folder / "raw")
    code, output = Nightly(write_config(folder, "isolated"), ("--isolate",)).ended()
    assert code == 0, output
    return folder


def test_a_run_that_is_killed_in_any_way_is_completed_by_a_rerun(folder: Path) -> None:
    config = write_config(folder, "together")
    lake = folder / "together"
    new = published(folder / "isolated")

    run = Nightly(config, ("--set", "workflow.engine=arrow"))  # which needs a JVM
    run.in_phase("build_features", "features")
    run.kill("/bin/java ")
    code, output = run.ended()
    assert code == 137, output
    assert "build_features ended with exit code 137 (killed by SIGKILL: worth a retry)" in output
    assert (lake / f"reports/{RUN_DATE}.html").exists()
    assert published(lake).items() <= new.items()

    run = Nightly(config)
    run.in_phase("train_model", "train")
    run.kill("jobs.stage_server")
    code, output = run.ended()
    assert code == 137, output
    assert "train_model ended with exit code 137 (killed by SIGKILL: worth a retry)" in output
    assert published(lake).items() <= new.items()

    run = Nightly(config)
    run.in_phase("score_daily", "score")
    run.kill("jobs/nightly.py")
    assert run.ended()[0] == -signal.SIGKILL
    assert published(lake).items() <= new.items()

    run = Nightly(config)
    mlflow = "training.registry.mlflow_calls"
    wait_for("MLflow's process", lambda: any(mlflow in command for _, command in marked(run.mark)), 480)
    run.kill(mlflow)  # the stages write to MLflow themselves then
    code, output = run.ended()
    assert code == 0, output
    assert published(lake) == new
