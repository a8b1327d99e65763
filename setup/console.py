"""What set-up says to its user: timed steps, and errors that tell what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class SetupError(Exception):
    """Set-up cannot go on; the message says what is wrong and what the user can do about it."""


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announces a step and, if it succeeds, says how long it took."""
    say(f"==> {title}")
    began = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - began:.0f} s")


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Runs a command whose output the user sees. Raises SetupError naming the command if it fails."""
    words = [str(word) for word in command]
    status = subprocess.run(words, env=None if env is None else dict(env), cwd=cwd, check=False).returncode
    if status != 0:
        raise SetupError(f"this command ended with exit code {status}:\n  {' '.join(words)}")


def capture(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """Standard output of a command. Raises SetupError with its error output if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        raise SetupError(
            f"this command ended with exit code {done.returncode}:\n  {' '.join(words)}\n{done.stderr}"
        )
    return done.stdout


def cache_folder() -> Path:
    """Where builds and downloads that outlive a checkout are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nightrank"


def fail(error: SetupError) -> int:
    """Prints the error and gives the exit code to end with."""
    print(f"\nset-up failed: {error}", file=sys.stderr, flush=True)
    return 1
