"""What the suite costs: seconds by test, fixture, process and JVM, as a plugin of pytest.

pytest -n 2 -p tests.costs      # each worker writes build/costs/WORKER.jsonl
python -m tests.costs           # prints the tables from these files
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

COSTS = Path(__file__).parent.parent / "build/costs"
_PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
_started: Counter[str] = Counter()
_TICKS = os.sysconf("SC_CLK_TCK")


def _count_processes(event: str, _: object) -> None:
    if event in _PROCESSES:
        _started["processes"] += 1


def _jvm_seconds() -> float:
    """CPU seconds of this process' shared JVM so far; 0 without one."""
    context = sys.modules.get("pyspark.context")
    gateway = context and context.SparkContext._gateway
    if not gateway or not getattr(gateway, "proc", None):
        return 0.0
    try:
        fields = Path(f"/proc/{gateway.proc.pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Recorder:
    """Writes a line for each phase of a test and each fixture: wall, own CPU, ended children's CPU, JVM's CPU."""

    def __init__(self, worker: str) -> None:
        COSTS.mkdir(parents=True, exist_ok=True)
        self._file = (COSTS / f"{worker}.jsonl").open("w", buffering=1)

    def _measured(self, kind: str, name: str, of: str) -> Generator[None, object, object]:
        started, times, jvm, processes = time.time(), os.times(), _jvm_seconds(), _started["processes"]
        try:
            return (yield)
        finally:
            ended = os.times()
            line = {
                "kind": kind,
                "name": name,
                "of": of,
                "wall": time.time() - started,
                "own": ended.user + ended.system - times.user - times.system,
                "children": ended.children_user
                + ended.children_system
                - times.children_user
                - times.children_system,
                "jvm": max(_jvm_seconds() - jvm, 0.0),
                "processes": _started["processes"] - processes,
            }
            self._file.write(
                json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in line.items()})
                + "\n"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._measured("setup", item.nodeid, ""))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._measured("call", item.nodeid, ""))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._measured("teardown", item.nodeid, ""))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        return (
            yield from self._measured(
                "fixture", fixturedef.argname, f"{fixturedef.scope} {request.node.nodeid}"
            )
        )


def pytest_configure(config: pytest.Config) -> None:
    """Starts recording in each process that runs tests."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker or not config.getoption("numprocesses", None):
        sys.addaudithook(_count_processes)
        config.pluginmanager.register(Recorder(worker or "main"))


def _table(title: str, lines: Iterable[dict], key: str, most: int = 60) -> None:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 6)
    for line in lines:
        total = sums[line[key]]
        for place, name in enumerate(("wall", "own", "children", "jvm", "processes")):
            total[place] += line[name]
        total[5] += 1
    print(f"\n{title}\n{'wall':>8} {'own':>8} {'children':>8} {'JVM':>8} {'started':>8} {'count':>7}")
    for name, total in sorted(sums.items(), key=lambda pair: -pair[1][0])[:most]:
        print(" ".join(f"{value:8.1f}" for value in total[:4]), f"{total[4]:8.0f} {total[5]:7.0f}  {name}")


def main() -> None:
    """Prints what folders, files, tests and fixtures cost, the dearest first."""
    lines = [json.loads(line) for file in COSTS.glob("*.jsonl") for line in file.read_text().splitlines()]
    tests = [line for line in lines if line["kind"] != "fixture"]
    for line in tests:
        line["file"] = line["name"].split("::")[0]
        line["folder"] = "/".join(line["file"].split("/")[:2])
    _table("all", [dict(line, name="all") for line in tests], "name")
    _table("by phase", tests, "kind")
    _table("by folder", tests, "folder")
    _table("by file", tests, "file", 150)
    _table("by test", tests, "name", 200)
    _table(
        "by fixture (with the fixtures that it asks for first)",
        [f for f in lines if f["kind"] == "fixture"],
        "name",
    )


if __name__ == "__main__":
    main()
