"""Functions for the set-up: printing timed steps, errors with a remedy, running commands, and locks."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class SetupError(Exception):
    """The set-up cannot continue. The message describes the problem and what the user can do."""


def say(text: str) -> None:
    """Prints a line without delay (flushes the output)."""
    print(text, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Prints the title of a step and, if the step succeeds, how long it took."""
    say(f"==> {title}")
    began = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - began:.0f} s")


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Runs a command and shows its output. If the command fails, raises SetupError with the command."""
    words = [str(word) for word in command]
    status = subprocess.run(words, env=None if env is None else dict(env), cwd=cwd, check=False).returncode
    if status != 0:
        raise SetupError(f"this command ended with exit code {status}:\n  {' '.join(words)}")


def capture(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """Returns the standard output of a command. If the command fails, raises SetupError with its errors."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        raise SetupError(
            f"this command ended with exit code {done.returncode}:\n  {' '.join(words)}\n{done.stderr}"
        )
    return done.stdout


def cache_folder() -> Path:
    """The folder for builds and downloads that several checkouts share."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nightrank"


@contextmanager
def locked(path: Path, patience_s: float = 3600) -> Iterator[None]:
    """Holds the lock on a file, so that two processes do not do the same work at the same time.

    Creates the file if it is missing.

    Raises:
        SetupError: another process still holds the lock after `patience_s` seconds, or the file is a symbolic
            link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(
            f"the lock file {path} cannot be opened: {error}\n  delete this file, and try again"
        ) from error
    try:
        _lock(file, path, patience_s)
        yield
    finally:
        os.close(file)


def _lock(file: int, path: Path, patience_s: float) -> None:
    end, reported = time.monotonic() + patience_s, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise SetupError(
                    f"another process has held the lock {path} for {patience_s:.0f} s\n"
                    f"  find it with `fuser -v {path}`; end it, or delete the lock file, and try again"
                ) from error
        if not reported:
            say(f"    waiting for another process that holds {path}")
            reported = True
        time.sleep(0.2)


def fail(error: SetupError) -> int:
    """Prints the error and returns the exit code."""
    print(f"\nset-up failed: {error}", file=sys.stderr, flush=True)
    return 1
