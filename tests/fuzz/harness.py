"""Runs targets in processes of their own, and stores the inputs that crash, hang or fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import sanitized
from tests.fuzz.child import MOST_BYTES, CurrentInput
from tests.processes import ROOT, die_with_parent, kill_tree

OUT = ROOT / "build/fuzz"
_START_S = 180  # for imports


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        path: `module:name` of a class. Its constructor gets the prefixes of the libraries. It has the methods
            `corpus`, which returns the files that are mutated, and `run`, which raises an exception for an
            input that is not handled as it should be.
        about: what it is, for people.
        libraries: folders of C++ sources, keys of `setup.build_native.LIBRARIES`.
    """

    path: str
    about: str
    libraries: tuple[str, ...] = ()


TARGETS = {
    "scanner": Target(
        "tests.fuzz.native_targets:Scanner",
        "lines of TSV and CSV: scan.cpp, compared with Python",
        ("etl/native",),
    ),
    "json-lines": Target("tests.fuzz.native_targets:JsonLines", "lines of JSON: json.cpp", ("etl/native",)),
    "pages": Target("tests.fuzz.native_targets:Pages", "pages of Parquet: pages.cpp", ("etl/native",)),
    "lookups": Target(
        "tests.fuzz.native_targets:Lookups",
        "look-ups, in memory and in damaged mapped files: lookup.cpp, compared with a dict",
        ("etl/native",),
    ),
    "counts": Target(
        "tests.fuzz.native_targets:Counts",
        "value counts and dictionaries that are merged: sums.cpp, merge.cpp, compared with Python",
        ("etl/native",),
    ),
    "transposition": Target(
        "tests.fuzz.loader_target:Transposition",
        "columns that the loader transposes to rows: transpose.cpp, compared with NumPy",
        ("training/native",),
    ),
    "manifests": Target("tests.fuzz.file_targets:Manifests", "manifests of partitions"),
    "tensors": Target("tests.fuzz.file_targets:Tensors", "files of tensors"),
    "yaml": Target("tests.fuzz.file_targets:Yaml", "configuration files"),
}


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        inputs: number of inputs that were run, or the number of the input that failed.
        problem: what went wrong, in a few words; None if nothing did.
        report: what the process wrote to standard error; it says where the error is.
        stored: the file of the input that failed.
    """

    inputs: int
    problem: str | None = None
    report: str = ""
    stored: Path | None = None


def run_target(
    name: str,
    target: Target,
    *,
    seconds: float = 0,
    seed: int = 0,
    limit_s: float = 30,
    data: Path | None = None,
    out: Path = OUT,
    prefixes: tuple[Path, ...] | None = None,
) -> Outcome:
    """Runs a target in a process of its own until the time is over or an input fails.

    Args:
        name: the name of the target, for the names of files.
        target: the target.
        seconds: how long inputs are drawn; at least one is run.
        seed: the seed of the inputs.
        limit_s: an input that takes longer counts as a hang.
        data: the file of one input, which is run instead of drawn inputs.
        out: the folder of libraries and of inputs that failed.
        prefixes: prefixes of libraries that were compiled before, instead of those of `target.libraries`.
    """
    out.mkdir(parents=True, exist_ok=True)
    if prefixes is None:
        prefixes = tuple(sanitized.build(folder, out / "native") for folder in target.libraries)
    command = [sys.executable, "-m", "tests.fuzz.child", target.path]
    options = [f"--prefix={prefix}" for prefix in prefixes]
    options += [f"--seed={seed}", f"--seconds={seconds}", *([f"--input={data}"] if data else [])]
    extra = sanitized.environment(MOST_BYTES) if prefixes else {}
    with tempfile.TemporaryDirectory(prefix="nightrank-fuzz-") as scratch:
        current = Path(scratch) / "current"
        problem, printed, report = _finish([*command, str(current), *options], extra, Path(scratch), limit_s)
        number, content = CurrentInput.read(current)
    if problem is None:
        return Outcome(int(printed or 1))
    stored = data
    if number >= 0 and data is None:
        stored = out / f"{name}-{seed}-{number}.input"
        stored.write_bytes(content)
        stored.with_suffix(".txt").write_text(f"{problem}\n{repeat(name, stored)}\n\n{report}")
    return Outcome(max(number, 0), problem, report, stored)


def repeat(name: str, stored: Path) -> str:
    """Returns the command that runs a stored input again."""
    path = stored.relative_to(ROOT) if stored.is_relative_to(ROOT) else stored
    return f"make fuzz ARGS='--target {name} --input {path}'"


def _finish(
    command: list[str], extra: Mapping[str, str], scratch: Path, limit_s: float
) -> tuple[str | None, str, str]:
    """Runs a process. Returns what went wrong, standard output and standard error.

    The process is killed if it runs one input for longer than the limit.
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch), **extra}
    with (scratch / "stdout").open("w+") as out, (scratch / "stderr").open("w+", errors="replace") as err:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=err,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )
        try:
            problem = _watch(process, scratch / "current", limit_s)
        finally:
            kill_tree(process)
        for file in (out, err):
            file.seek(0)
        return problem, out.read().strip(), err.read()


def _watch(process: subprocess.Popen[bytes], current: Path, limit_s: float) -> str | None:
    before, since = -1, time.monotonic()
    while process.poll() is None:
        number, _ = CurrentInput.read(current)
        if number != before:
            before, since = number, time.monotonic()
        if time.monotonic() - since > (limit_s if number >= 0 else _START_S):
            return f"it hangs: an input takes more than {limit_s:g} s" if number >= 0 else "it does not start"
        time.sleep(0.2)
    code = process.returncode
    if code == 0:
        return None
    if code == sanitized.FAILED:
        return "a sanitizer reports an error"
    return f"it is killed by signal {-code}" if code < 0 else "an exception that it should not raise"
