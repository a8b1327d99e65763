"""Runs the compilation of Horovod, writes the output to a log, and explains why a compilation failed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from setup.console import SetupError, say

# Pairs of a pattern of log lines and an explanation with cause and remedy. The explanation of the first
# pattern that matches is reported.
EXPLANATIONS = (
    (
        r"No space left on device",
        "the disk is full: the build needs about 1 GB in the folder for temporary files (TMPDIR)",
    ),
    (r"Python\.h: No such file", "Python's headers are missing: apt-get install python3.11-dev"),
    (
        r"Killed signal terminated|c\+\+: fatal error: Killed",
        "the compiler was killed, probably because memory ran out: 4 GB are needed",
    ),
    (
        r"No CMAKE_CXX_COMPILER could be found|CMAKE_CXX_COMPILER.*not able to compile",
        "no working g++: apt-get install g++",
    ),
    (
        r"unsupported GNU version",
        "this g++ is newer than nvcc supports: install an older one and set CXX to it",
    ),
    (
        r"Could NOT find (NCCL|CUDAToolkit)|nvcc fatal|ptxas fatal",
        "the CUDA packages of requirements/build.in do not match those of torch",
    ),
    (r"Could NOT find Pytorch|No module named 'torch'", "torch cannot be imported from .venv"),
)


def compile_logged(command: Sequence[str | Path], environment: dict[str, str], log: Path) -> None:
    """Runs Horovod's build, writes its output to the log, and prints the percentages that make reports."""
    words = [str(word) for word in command]
    with (
        log.open("wb") as output,
        subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT) as build,
    ):
        shown = 0
        while _still_runs(build, for_s=2):
            percent = last_percentage(log)
            if percent >= shown + 20:
                shown = percent
                say(f"    compiling: {percent} %")
    if build.returncode != 0:
        raise SetupError(explain(log.read_text(errors="replace"), log))


def _still_runs(process: subprocess.Popen[bytes], for_s: float) -> bool:
    try:
        process.wait(timeout=for_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def last_percentage(log: Path) -> int:
    """The last percentage such as `[ 48%]` near the end of the log; 0 if there is none."""
    with log.open("rb") as text:
        text.seek(max(0, log.stat().st_size - 20_000))
        percentages = re.findall(rb"\[\s*(\d+)%\]", text.read())
    return int(percentages[-1]) if percentages else 0


def explain(log_text: str, log: Path) -> str:
    """The message for a failed build: the cause if it is known, the path of the log, and its last lines."""
    causes = [advice for pattern, advice in EXPLANATIONS if re.search(pattern, log_text)]
    cause = causes[0] if causes else "the cause is unknown, so read the first error in the log"
    tail = "\n".join(f"    {line[:200]}" for line in log_text.splitlines()[-25:])
    return f"Horovod did not compile: {cause}\n  the end of {log}:\n{tail}"
