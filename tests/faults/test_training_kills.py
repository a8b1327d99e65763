"""SIGKILL of a rank, of the driver with all its processes, and between a checkpoint's files and its index.

One training collects all three, and ends on another number of ranks; it loses no more than the steps since
the last checkpoint, and ends where an undisturbed one does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.paths import LakePaths
from tests.faults.job_processes import MARK, ROOT, marked, wait_until_gone
from tests.faults.training_process import EVERY, plan_of, publish
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan

pytestmark = [pytest.mark.timeout(1800), pytest.mark.processes]

_PATIENCE_S = 600


def checkpoints(plan: TrainPlan) -> list[int]:
    """Steps of the checkpoints that exist, ascending."""
    names = [path.name for path in Path(plan.checkpoint_path).glob("step-*.json")]
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)\.json", name)))


@dataclass
class Attempt:
    """A training in a process of its own, with all that it starts."""

    process: subprocess.Popen[bytes]
    mark: str
    log: Path

    @classmethod
    def start(cls, lake: LakePaths, folder: Path, how: str) -> Attempt:
        mark = uuid.uuid4().hex
        log, scratch = folder / f"{how}-{mark[:6]}.log", folder / f"spark-{mark[:6]}"
        command = [sys.executable, "-m", "tests.faults.training_process", lake.root, str(scratch), how]
        environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        environment.pop("SPARK_HOME", None)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        return cls(process, mark, log)

    def until_checkpoint_after(self, plan: TrainPlan, step: int) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not any(saved_step > step for saved_step in checkpoints(plan)):
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.02)

    def ranks(self) -> list[int]:
        """Process ids of its Horovod ranks."""
        return [pid for pid, command in marked(self.mark) if "gloo_exec_fn" in command]

    def ended(self) -> int:
        """Waits for its end, and kills what outlives it; the exit code."""
        try:
            code = self.process.wait(timeout=_PATIENCE_S)
        finally:
            self.kill()
        return code

    def kill(self) -> None:
        """All of its processes, by the process group and by the mark."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pid, _ in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(self.mark)

    def resumed_after(self) -> list[int]:
        return [int(step) for step in re.findall(r"resuming after step (\d+)", self.log.read_text())]


@dataclass
class Story:
    """Descriptions of an undisturbed and a disturbed training, and the checkpoints around each attempt."""

    peace: dict[str, Any]
    kills: dict[str, Any]
    attempts: list[tuple[Attempt, int, int]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("kills")
    lake = publish(folder / "lake")
    plan = plan_of(lake)
    peace = train_in_process(
        replace(plan, model_path=str(folder / "peace"), checkpoint_path=str(folder / "none"))
    )
    attempts = []
    for what in ("a rank", "the driver"):
        before = max(checkpoints(plan), default=0)
        attempt = Attempt.start(lake, folder, "ranks")
        try:
            attempt.until_checkpoint_after(plan, before)
            if what == "a rank":
                victim = attempt.ranks()[-1]
                os.kill(victim, signal.SIGKILL)
                attempt.ended()
        finally:
            attempt.kill()
        attempts.append((attempt, before, max(checkpoints(plan))))
    before = max(checkpoints(plan))
    attempt = Attempt.start(lake, folder, str(before + 2 * EVERY))
    attempt.ended()
    attempts.append((attempt, before, max(checkpoints(plan))))
    return Story(peace, train_in_process(plan), attempts)


def test_each_attempt_was_killed_in_the_middle(story: Story) -> None:
    (rank, _, _), (driver, _, _), (alone, before, after) = story.attempts
    assert rank.process.returncode == 4, rank.log.read_text()[-4000:]
    assert driver.process.returncode == -signal.SIGKILL
    assert alone.process.returncode == -signal.SIGKILL
    assert after == before + EVERY  # the files of the one after it were written, its index was not
    assert all(last < 800 for _, _, last in story.attempts)


def test_no_more_is_lost_than_since_the_last_checkpoint(story: Story) -> None:
    for attempt, before, after in story.attempts:
        assert set(attempt.resumed_after()) == ({before} if before else set())
        assert after > before


def test_it_ends_where_the_undisturbed_one_does(story: Story) -> None:
    peace, kills = story.peace, story.kills
    assert [entry["step"] for entry in kills["history"]] == list(range(1, 801))
    losses = [np.array([entry["loss"] for entry in of["history"]]) for of in (peace, kills)]
    np.testing.assert_allclose(losses[1][:50], losses[0][:50], rtol=1e-4)
    for split in ("validation", "test"):
        assert kills["metrics"][split]["auc"] == pytest.approx(peace["metrics"][split]["auc"], abs=2e-3)
    assert kills["metrics"]["test"]["auc"] > 0.75
