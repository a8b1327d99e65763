"""Runs all GPU benchmarks one after another, and collects their results in a folder.

    python benchmarks/gpu/run_all.py --out FOLDER [--only PART …] [--again] [--limit SECONDS]

Each part is a process of its own with a time limit. A part that has a result in FOLDER is skipped, so the
command can be repeated until all parts have results; --again runs them anew. FOLDER then has two files:

    results.json   for each part: its JSON line, seconds, exit code, and the end of its output if it failed
    results.md     a table of the parts with their ratios

The parts are ordered by what they need: first those that need only torch, Triton and our packages; then those
that need pyarrow and Petastorm (pyarrow 14 and NumPy 1); then those that need Spark. A part whose packages
cannot be imported is not run, and its result names them; it does not count as failed. Without a GPU, shapes are
tiny, nothing is measured, and Triton's interpreter runs the kernels (that of Triton 3.6 works with NumPy 2.3, but
not with 2.5).

Exit codes: 0 all parts that can run here have results, 1 a part failed or took too long, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 480
_KEPT_CHARACTERS = 4_000


@dataclass(frozen=True)
class Part:
    """A script of this folder.

    Attributes:
        script: file name without the ending.
        needs: packages that the script imports and that may be missing.
    """

    script: str
    needs: tuple[str, ...] = ("torch", "triton", "pydantic", "yaml")


PARTS = {
    "roofline": Part("roofline"),
    "kernels": Part("kernels"),
    "parity": Part("parity"),
    "device_tests": Part(
        "device_tests", needs=("torch", "triton", "pydantic", "yaml", "pytest", "hypothesis")
    ),
    "training_step": Part("training_step"),
    "profile_step": Part("profile_step"),
    "precision": Part("precision"),
    "scoring": Part("scoring"),
    "embedding_memory": Part("embedding_memory"),
    "fbgemm": Part("fbgemm", needs=("torch", "triton", "pydantic", "yaml", "fbgemm_gpu")),
    "loader_feeding": Part("loader_feeding", needs=("torch", "triton", "pyarrow", "petastorm")),
    "sequence_epoch": Part(
        "sequence_epoch", needs=("torch", "triton", "pyarrow", "petastorm", "pandas", "scipy")
    ),
    "list_pairs": Part("list_pairs", needs=("torch", "triton", "pydantic", "yaml", "pyarrow")),
    "text_scan": Part("text_scan", needs=("torch", "pydantic", "yaml", "pyarrow", "pandas")),
    "terabyte": Part("terabyte", needs=("pydantic", "yaml", "pyarrow", "pandas")),
    "etl_on_gpu": Part("etl_on_gpu", needs=("torch", "pydantic", "yaml", "pyarrow", "pandas")),
    "scoring_in_spark": Part(
        "scoring_in_spark", needs=("torch", "triton", "pyarrow", "petastorm", "pyspark")
    ),
    "etl": Part("etl", needs=("pydantic", "yaml", "pyarrow", "pandas", "pyspark")),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="the folder of the results")
    parser.add_argument("--only", nargs="*", choices=[*PARTS], default=[*PARTS], help="parts to run")
    parser.add_argument("--again", action="store_true", help="also run parts that have a result")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="time limit of a part (default 480)"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    results = read_results(options.out)
    for name in options.only:
        if name in results and results[name]["ok"] and not options.again:
            print(f"{name}: has a result", flush=True)
            continue
        print(f"{name} …", flush=True)
        results[name] = run(PARTS[name], options.limit)
        write_results(options.out, results)
        print(f"{name}: {outcome(results[name])}", flush=True)
    return 1 if any(results[name]["failed"] for name in options.only) else 0


def run(part: Part, limit_s: float) -> dict[str, Any]:
    """Runs a part and returns its result: the keys that the module's docstring describes, `ok` and `failed`."""
    missing = missing_packages(part.needs)
    if missing:
        return {"ok": False, "failed": False, "missing": missing}
    command = [sys.executable, str(ROOT / f"benchmarks/gpu/{part.script}.py")]
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    result: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "exit_code": process.returncode}
    summary = _summary(output) if process.returncode == 0 else None
    ok = summary is not None
    result |= {"ok": ok, "failed": not ok}
    return result | ({"summary": summary} if ok else {"output": output[-_KEPT_CHARACTERS:]})


def missing_packages(names: Sequence[str]) -> list[str]:
    """Returns the packages that cannot be imported, such as Petastorm beside a pyarrow that is too new.

    A package whose libraries were built for another torch raises OSError.
    """
    return [name for name in names if not _can_be_imported(name)]


@functools.cache
def _can_be_imported(name: str) -> bool:
    """Imports a package in a process of its own, so that a library that crashes ends no other part."""
    program = (
        "import importlib, sys\n"
        "try:\n"
        "    importlib.import_module(sys.argv[1])\n"
        "except (ImportError, OSError):\n"
        "    sys.exit(1)\n"
    )
    return (
        subprocess.run([sys.executable, "-c", program, name], capture_output=True, check=False).returncode
        == 0
    )


def _summary(output: str) -> dict[str, Any] | None:
    """Returns the JSON object on the last line of an output; None if there is none."""
    lines = output.strip().splitlines()
    try:
        summary = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
    return summary if isinstance(summary, dict) else None


def outcome(result: Mapping[str, Any]) -> str:
    """Returns in a few words how a part ended."""
    if result.get("missing"):
        return f"not run, because packages are missing: {', '.join(result['missing'])}"
    if result["ok"]:
        return f"done in {result['seconds']:.0f} s"
    if result["exit_code"] == -signal.SIGKILL:
        return f"ended after {result['seconds']:.0f} s, at its time limit"
    return f"failed with exit code {result['exit_code']}"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the results that a folder has, by part."""
    path = folder / "results.json"
    stored: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return stored


def write_results(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces both files. A command that is killed leaves the results of the parts before."""
    _replace(folder / "results.json", json.dumps(results, indent=1) + "\n")
    _replace(folder / "results.md", markdown(results))


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a table with a line for each ratio, and one for each part without ratios."""
    lines = ["| part | outcome | ratio | |", "|---|---|---|---|"]
    for name, result in results.items():
        ratios = result["summary"]["ratios"] if result["ok"] else {}
        for ratio, value in ratios.items():
            shown = "not measured" if value is None else f"{value:.2f}"
            lines.append(f"| {name} | {outcome(result)} | {ratio} | {shown} |")
        if not ratios:
            lines.append(f"| {name} | {outcome(result)} | | |")
    machines = [result["summary"]["machine"] for result in results.values() if result["ok"]]
    if machines:
        shown = machines[-1]
        lines += ["", f"{shown['date']}, GPU: {shown.get('gpu') or 'none'}, CPU: {shown['cpu']}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
