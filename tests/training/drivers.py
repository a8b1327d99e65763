"""Drivers as processes, for tests that kill them or their ranks."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from spark.profile import read_properties
from tests.processes import ROOT, environment, kill_tree, wait_for
from training.loop.training_plan import TrainPlan

RANK = "horovod.spark.task.gloo_exec_fn"
# A checkpoint is complete when its index is there, or its only file.
_WHOLE = re.compile(r"step-\d+\.(json|safetensors)")


@dataclass
class Driver:
    """A running tests.training.driver_process. `roots` are the processes below which its ranks are."""

    process: subprocess.Popen[bytes]
    folder: Path
    roots: list[int]

    def ranks(self) -> dict[int, psutil.Process]:
        """Rank (the one it started with) → its process."""
        ranks = {}
        for root in self.roots:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(root).children(recursive=True):
                    with suppress(psutil.Error):
                        if process.cmdline()[1:3] == ["-m", RANK]:
                            ranks[int(process.environ()["HOROVOD_RANK"])] = process
        return ranks

    def kill_at_checkpoint(self, plan: TrainPlan, rank: int) -> None:
        """SIGKILL to a rank, as soon as the training has a checkpoint."""
        process = wait_for(f"rank {rank}", lambda: self.ranks().get(rank), poll_s=0.5)
        self.wait_for_checkpoint(plan)
        process.kill()

    def wait_for_checkpoint(self, plan: TrainPlan) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.log[-6000:]
            files = Path(plan.checkpoint_path).glob("step-*")
            return any(_WHOLE.fullmatch(file.name) for file in files)

        wait_for("a checkpoint", look)

    def ended(self, name: str) -> dict[str, Any]:
        """How a training ended."""
        path = self.folder / f"{name}.json"

        def look() -> bool:
            assert self.process.poll() is None or path.exists(), self.log[-6000:]
            return path.exists()

        wait_for(f"the end of {name}", look)
        return dict(json.loads(path.read_text()))

    def steps(self, name: str) -> list[int]:
        """The steps that rank 0 reported, in the order in which the driver heard of them."""
        return [json.loads(line)["step"] for line in (self.folder / f"{name}.progress").open()]

    def processes(self) -> list[int]:
        """The driver's JVM, and the ranks."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [process.pid for process in (*below, *self.ranks().values())]

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()


@contextmanager
def running_driver(
    folder: Path,
    plans: Mapping[str, TrainPlan],
    settings: Mapping[str, str],
    workers: list[int] | None = None,
) -> Iterator[Driver]:
    """Trains these plans one after the other. At the end the driver and its children are gone in any case."""
    profile = read_properties(ROOT / "conf/spark/local.conf")
    scratch = {
        "spark.local.dir": str(folder / "scratch"),
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
    }
    (folder / "settings.json").write_text(json.dumps({**profile, **scratch, **settings}))
    for name, plan in plans.items():
        (folder / f"{name}.plan").write_bytes(pickle.dumps(plan))
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.driver_process", str(folder), *plans],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
        )
    try:
        yield Driver(process, folder, workers or [process.pid])
        process.wait(timeout=60)
    finally:
        kill_tree(process)
