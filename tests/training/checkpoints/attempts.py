"""Processes that save a model or a checkpoint at the same time, and stop before each step until released.

A test thus decides how their steps interleave, and does not depend on time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any

from storage import file_io
from tests.processes import fork_server
from tests.training.checkpoints.layouts import LAYOUTS, FakeTrainer
from training.checkpoints import Checkpoints, Position, checkpoints, model, save_trained
from training.checkpoints.stored import StoredState
from training.collectives import LocalCollectives

CARDINALITIES = [9, 5, 17]
END = "the end"
_PATIENCE_S = 120

_context = multiprocessing.get_context("forkserver")


def server_of_attempts(*more: str) -> AbstractContextManager[object]:
    """The server that forks the processes. A file of tests starts it, because it imports torch once.

    It also imports `more`: modules that otherwise each of the processes would import.
    """
    return fork_server(__name__, "tests.training.checkpoints.test_models_on_disk", *more)


@dataclass
class Attempt:
    """A process that stops before each of its steps. `step` is its next step, `value` what it returned."""

    process: BaseProcess
    channel: Connection
    step: str = ""
    value: Any = None

    def go_on(self) -> str:
        """Lets it take its step; the next one."""
        self.channel.send("go")
        return self.wait()

    def wait(self) -> str:
        assert self.channel.poll(_PATIENCE_S), f"no step after {self.step!r}"
        self.step, self.value = self.channel.recv()
        return self.step

    def take(self, steps: int) -> bool:
        """Lets it take so many steps; whether it has more to take."""
        for _ in range(steps):
            if self.step == END:
                return False
            self.go_on()
        return self.step != END

    def until(self, step: str) -> None:
        """Lets it go on until it is about to take a step whose name begins so."""
        while not self.step.startswith(step):
            assert self.step != END, f"it ended before {step}"
            self.go_on()

    def finish(self) -> Any:
        """Lets it go on to its end; what it returned."""
        self.until(END)
        return self.value

    def kill(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join(_PATIENCE_S)


@contextmanager
def attempt(body: Callable[..., Any], *arguments: Any) -> Iterator[Attempt]:
    """Runs `body` in another process, which waits before its first step."""
    connection, channel = _context.Pipe()
    process = _context.Process(target=_run, args=(channel, dict(os.environ), body, arguments))
    process.start()
    started = Attempt(process, connection)
    try:
        started.wait()
        yield started
    finally:
        process.kill()
        process.join(_PATIENCE_S)


def _run(
    channel: Connection, variables: dict[str, str], body: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Runs the body. Its steps are file operations, such as `create model.json` or `load state`."""

    os.environ.update(variables)  # the server that forks was started before a test set them

    # The thread that writes checkpoints takes steps beside the training: one step at a time, because two
    # threads that read one channel would each get a part of the answer.
    one_step = Lock()

    def stop(step: str) -> None:
        with one_step:
            channel.send((step, None))
            channel.recv()

    def stopping(module: Any, function: str, verb: str, name_of: Callable[..., str]) -> None:
        original = getattr(module, function, None)

        def stopped(*args: Any, **kwargs: Any) -> Any:
            stop(f"{verb} {name_of(*args)}")
            return original(*args, **kwargs) if original else None

        if original is not None:
            setattr(module, function, stopped)

    def of_path(path: str, *_: Any) -> str:
        return path.rsplit("/", 1)[1]

    def of_tensors(folder: str, name: str, *_: Any) -> str:
        return name

    stopping(file_io, "create_json", "create", of_path)
    stopping(file_io, "replace_json", "replace", of_path)
    stopping(file_io, "delete_file", "delete", of_path)
    stopping(file_io, "exists", "look for", of_path)
    stopping(file_io, "_upload", "upload", of_path)
    stopping(checkpoints, "damage", "examine", lambda _, entry: entry.name)
    stopping(StoredState, "load", "load", lambda *_: "state")
    stopping(model, "write_tensors", "write", of_tensors)
    stopping(checkpoints, "write_tensors", "write", of_tensors)
    try:
        value = body(*arguments)
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
    channel.send((END, value))


def save_a_model(folder: str, seconds: float) -> float:
    """Saves the same weights as all others, in its own time; the time that the model says in the end."""
    from tests.training.checkpoints.test_models_on_disk import describe, make_trainer

    description = {**describe(), "seconds": seconds}
    saved = save_trained(folder, make_trainer(seed=4), description, LocalCollectives())
    return float(saved["seconds"])


def save_a_checkpoint(folder: str, steps: list[int]) -> None:
    with Checkpoints(folder, LocalCollectives()) as opened:
        for step in steps:
            trainer = FakeTrainer(LAYOUTS["replicated"], CARDINALITIES).fill(step)
            opened.save(trainer, Position(step))
            opened.wait()


def complete_a_training(folder: str) -> None:
    with Checkpoints(folder, LocalCollectives()) as opened:
        opened.delete()


def restore_a_checkpoint(folder: str) -> int | None:
    """The step of a restored state that is whole."""
    trainer = FakeTrainer(LAYOUTS["replicated"], CARDINALITIES)
    with Checkpoints(folder, LocalCollectives()) as opened:
        position = opened.restore(trainer)
    if position is None:
        return None
    expected = FakeTrainer(LAYOUTS["replicated"], CARDINALITIES).fill(position.step)
    same = all(bool((trainer.state()[name] == value).all()) for name, value in expected.state().items())
    return position.step if same else -position.step


def make_old(folder: Path) -> None:
    """Two days pass."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 172_800, time.time() - 172_800))
