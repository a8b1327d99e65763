"""The five parts of the campaign. Each draws one case, runs it, and says how it ended.

A part raises `Problem` if something happens that must not. Otherwise it returns a word for what happened.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import nightrank
from conf.errors import NightrankError
from storage.manifest import MANIFEST_NAME
from storage.paths import LakePaths
from tests.campaign.world import (
    LIMIT_S,
    Before,
    Ended,
    Problem,
    World,
    contents,
    end,
    kib,
    require_equal,
    require_typed,
    require_whole,
    run,
    start,
)
from tests.faults.job_processes import CONFIG, DAYS, RUN_DATE
from tests.fuzz.inputs import mutated_copy, with_wrong_value
from tests.processes import ROOT


@dataclass(frozen=True)
class Case:
    """How a case ended. `what` describes the fault, `outcome` says in a word what it did."""

    what: str
    outcome: str


Part = Callable[[World, random.Random], Case]


@contextmanager
def _copied(world: World, folder: Path) -> Iterator[Path]:
    copy = world.case(folder)
    try:
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def kills(world: World, draw: random.Random) -> Case:
    """SIGKILL of a job at a random instant. Then the job runs again."""
    job = draw.choice(world.jobs)
    instant = job.seconds * draw.uniform(0.05, 1.05)
    what = f"{job.step.job} killed after {instant:.2f} s"
    with _copied(world, job.folder) as folder:
        ended = world.run(job.step, folder, instant)
        require_whole(folder, job, what)
        if not ended.killed:
            require_typed(ended, [0])
        _run_again(world, job, folder, what)
    return Case(what, "healed" if ended.killed else "ended before")


def concurrent(world: World, draw: random.Random) -> Case:
    """The same job twice at once, the second one later. In a third of the cases, the first one is killed."""
    job = draw.choice(world.jobs)
    offset = job.seconds * draw.uniform(0, 1.0)
    killed = draw.random() < 0.33
    what = f"{job.step.job} twice, {offset:.2f} s apart{', the first killed' if killed else ''}"
    with _copied(world, job.folder) as folder:
        command = world.command(job.step, folder)
        first = start(command, folder)
        with suppress(subprocess.TimeoutExpired):
            first[0].wait(offset)
        second = start(command, folder)
        try:
            one = end(*first, job.seconds * draw.uniform(0, 0.5) if killed else None)
        finally:
            other = end(*second)
        require_whole(folder, job, what)
        for ended in (one, other):
            if not ended.killed:
                require_typed(ended, [0, 4])
        codes = sorted(ended.code for ended in (one, other) if not ended.killed)
        if not killed and 0 not in codes:
            raise Problem("exit code", f"{what}: none of both succeeded: {one.output[-1000:]}")
        _run_again(world, job, folder, what)
    return Case(what, "one was refused" if 4 in codes else "both ended")


def _run_again(world: World, job: Before, folder: Path, what: str) -> None:
    """Runs a job undisturbed, and compares the lake with that of an undisturbed run."""
    again = world.run(job.step, folder)
    if again.code != 0:
        raise Problem("exit code", f"{what}: the next run ends with {again.code}: {again.output[-2000:]}")
    require_typed(again, [0])
    require_equal(folder, job.becomes, job.step.exact, f"{what}, then run again")


def can_mount() -> bool:
    """Returns whether this user may mount file systems in a namespace of its own."""
    probe = "mount -t tmpfs -o size=64k none /mnt && mount -o remount,bind,ro /mnt"
    done = subprocess.run([*_NAMESPACE, "sh", "-c", probe], capture_output=True, check=False)
    return done.returncode == 0


_NAMESPACE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
# $1 is the folder of the case; the lake is copied into a file system of $2 KiB, and out of it after the job.
_FULL = (
    'mount -t tmpfs -o size="$2"k none "$1/disk" && cp -a "$1/lake/." "$1/disk/" && mount --bind "$1/disk" "$1/lake"'
    ' || exit 97; shift 2; "$@"; rc=$?; exit $rc'
)
_COPY = 'rm -rf "$1/after"; cp -a "$1/disk" "$1/after"'
# $1 is a folder, which becomes read-only after $2 twentieths of a second, as soon as no file is open for writing.
_READ_ONLY = (
    'mount --bind "$1" "$1" || exit 97; '
    '{ n="$2"; while [ "$n" -gt 0 ]; do sleep 0.05; n=$((n - 1)); done; '
    'until mount -o remount,bind,ro "$1" 2>/dev/null; do sleep 0.01; done; } & '
    'shift 2; "$@"; rc=$?; kill $! 2>/dev/null; exit $rc'
)


def disks(world: World, draw: random.Random) -> Case:
    """A disk that becomes full, or a folder of the lake that becomes read-only, at a random step of a job."""
    job = draw.choice(world.jobs)
    if not can_mount():
        return Case("no namespaces for mounts here", "skipped")
    with _copied(world, job.folder) as folder:
        (folder / "lake").mkdir(exist_ok=True)
        command = world.command(job.step, folder)
        if draw.random() < 0.6:
            size = kib(folder) + 16 + int(max(16, job.grows_kib) * draw.uniform(0, 1.1))
            what = f"{job.step.job} on a disk of {size} KiB"
            (folder / "disk").mkdir()
            # The lake is copied out in the same namespace, since its mounts end with the process.
            script = _FULL.replace("exit $rc", f'set -- "{folder}"; {_COPY}; exit $rc')
            words = [str(folder), str(size)]
        else:
            lake = folder / "lake"
            tables = sorted(path for top in (lake, lake / "_data") for path in top.glob("*") if path.is_dir())
            target = draw.choice([lake, draw.choice([lake, *tables])])
            instant = draw.uniform(0, job.seconds)
            what = f"{job.step.job}, {target.relative_to(folder)} read-only after {instant:.2f} s"
            script, words = _READ_ONLY, [str(target), str(int(instant * 20))]
        ended = run([*_NAMESPACE, "sh", "-c", script, "sh", *words, *command], folder)
        if ended.code == 97:
            raise RuntimeError(f"the file system cannot be mounted: {ended.output[-500:]}")
        if (folder / "after").exists():
            shutil.rmtree(folder / "lake")
            (folder / "after").rename(folder / "lake")
        require_typed(ended, [0, 4])
        require_whole(folder, job, what)
        _run_again(world, job, folder, what)
    return Case(what, "refused" if ended.code else "ended")


# Damage


def damage(world: World, draw: random.Random) -> Case:
    """A flipped bit, other bytes or a truncation in any file of the lake, which is then read as a whole."""
    with _copied(world, world.finished) as folder:
        files = sorted(path for path in (folder / "lake").rglob("*") if path.is_file())
        path = draw.choice([path for path in files if path.stat().st_size])
        what = f"{path.relative_to(folder)}: {_damage(path, draw)}"
        answers = _read_in_process(folder)
        if answers["kind"] == "error":
            raise Problem("traceback", f"{what}: {answers['text'][-2000:]}")
        if answers["kind"] == "refused":
            return Case(what, "detected by a reader")
        if answers["read"] != _undamaged(str(world.finished)):
            raise Problem("wrong rows", f"{what}: a reader gets other values, without an error")
        fsck = run([sys.executable, str(ROOT / "jobs/fsck.py"), "--lake", str(folder / "lake")], folder)
        require_typed(fsck, [0, 3])
    return Case(what, "detected by fsck" if fsck.code else "harmless")


def _damage(path: Path, draw: random.Random) -> str:
    """Damages a file in place, so that hard links to it are damaged too. Returns what was done."""
    size = path.stat().st_size
    place = draw.randrange(size)
    with path.open("r+b") as file:
        kind = draw.choice(("flip", "flip", "flip", "bytes", "truncation"))
        if kind == "truncation":
            file.truncate(place)
            return f"truncated to {place} of {size} bytes"
        file.seek(place)
        if kind == "flip":
            old = file.read(1)[0]
            file.seek(place)
            bit = draw.randrange(8)
            file.write(bytes([old ^ (1 << bit)]))
            return f"bit {bit} of byte {place} of {size} flipped"
        length = min(draw.choice((2, 16, 512)), size - place)
        file.write(draw.randbytes(length))
        return f"{length} random bytes at {place} of {size}"


@cache
def _undamaged(finished: str) -> dict[str, str]:
    """What readers get of the finished lake."""
    answers = _read_in_process(Path(finished))
    if answers["kind"] != "read":
        raise RuntimeError(f"the undamaged lake cannot be read: {answers['text']}")
    read: dict[str, str] = answers["read"]
    return read


@cache
def _readers() -> Any:
    """Starts a server that forks readers. It has imported their modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.campaign.parts"])
    return context


def _read_in_process(folder: Path) -> dict[str, Any]:
    """Reads the whole lake in a new process, which has compared no file yet."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    process = _readers().Process(target=_read_all, args=(str(folder), str(answer)))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        raise Problem("hang", f"a reader took more than {LIMIT_S:.0f} s")
    if not answer.exists():
        return {"kind": "error", "text": f"the reader ended with the exit code {process.exitcode}"}
    answers: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return answers


def _read_all(folder: str, answer: str) -> None:
    """Reads tables, the workflow and the champion of a lake through the package, and writes their digests."""
    try:
        answers: dict[str, Any] = {"kind": "read", "read": read_lake(Path(folder))}
    except NightrankError as error:
        answers = {"kind": "refused", "text": str(error)}
    except BaseException as error:
        answers = {"kind": "error", "text": f"{type(error).__name__}: {error}"}
    Path(answer).write_text(json.dumps(answers), encoding="utf-8")


def read_lake(folder: Path) -> dict[str, str]:
    """Returns digests of all that a program can read of a lake."""
    root = str(folder / "lake")
    lake, seen = nightrank.open(root), dict[str, str]()
    version = lake.workflow().version
    for table in _tables(LakePaths(root)):
        of_table, _, workflow = table.partition("/")
        known = {"workflow": workflow} if workflow else {}
        for date in lake.dates(of_table, **known):
            rows = lake.table(of_table, date, **known).arrow()
            seen[f"{table} {date}"] = _digest(rows)
    sample = pd.DataFrame(
        {
            "label": [0, 1, 0],
            "age": [20, 31, 44],
            "price": [3, 30, 117],
            "user": ["user 1", "user 77", "nobody"],
            "item": ["item 0", "item 39", "nothing"],
        }
    )
    seen["workflow"] = version
    seen["encoded"] = _digest(pa.Table.from_pandas(lake.workflow().encode(sample)))
    if (folder / "lake/evaluations").exists():
        seen["scores"] = str([round(float(score), 4) for score in lake.champion().score(sample)])
    return seen


def _tables(lake: LakePaths) -> list[str]:
    """Returns the names of the tables with published Parquet rows, as `nightrank.Lake.table` has them."""
    names = set()
    for path in Path(lake.root).rglob(MANIFEST_NAME):
        table = path.parent.parent.relative_to(lake.root)
        if path.parent.name.startswith("dt=") and len(table.parts) <= 2:
            names.add("/".join(table.parts))
    return sorted(names & {name for name in names if name.partition("/")[0] in _READ})


_READ = ("recommendations", "features", "quarantine", "users", "items", "candidates", "scores")


def _digest(rows: pa.Table) -> str:
    values = rows.to_pandas().to_json(orient="split", double_precision=6)
    return sha256(values.encode()).hexdigest()[:16]


# Bad inputs


def inputs(world: World, draw: random.Random) -> Case:
    """A damaged log, configuration or command line of build_features."""
    with _copied(world, world.jobs[0].folder) as folder:
        return draw.choice((_bad_log, _bad_log, _bad_config, _bad_arguments))(world, draw, folder)


def _build(config: Path, folder: Path, *words: str) -> Ended:
    command = [sys.executable, str(ROOT / "jobs/build_features.py"), "--config", str(config)]
    ended = run([*command, "--run-date", RUN_DATE, *words], folder)
    require_typed(ended)
    return ended


def _bad_log(world: World, draw: random.Random, folder: Path) -> Case:
    """Every row of a damaged log is in the features or in the quarantine, or the job refuses the log."""
    kind = draw.choice(("tsv", "tsv.gz", "parquet"))
    raw, day = folder / "raw", draw.choice(DAYS)
    for name in DAYS:
        (raw / f"dt={name}").mkdir(parents=True)
        content = (world.folder / f"raw/dt={name}/part-0.tsv").read_bytes()
        data = _as_format(content, kind)
        if name == day:
            data = mutated_copy(draw, data)
        (raw / f"dt={name}/part-0.{kind}").write_bytes(data)
    log = {**CONFIG["log"], "format": kind.partition(".")[0], "path": f"{{data}}/dt={{date}}/*.{kind}"}
    config = world.config(folder, data=str(raw), log=log)
    ended = _build(config, folder)
    what = f"a damaged file .{kind} of {day}"
    if ended.code == 0:
        try:
            contents(folder)
        except (ValueError, OSError) as error:
            raise Problem("wrong rows", f"{what}: {error}") from error
        _require_all_rows(folder, what)
    return Case(what, {0: "accepted", 2: "refused", 3: "refused", 4: "refused"}[ended.code])


def _require_all_rows(folder: Path, what: str) -> None:
    """Raises Problem unless each manifest of features accounts for every row that was read."""
    for path in sorted((folder / "lake/features").rglob(MANIFEST_NAME)):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kept, dropped = manifest["rows"], sum(manifest["dropped"].values())
        if manifest["rows_in"] != kept + dropped:
            raise Problem(
                "lost rows", f"{what}: {path.parent.name} read {manifest['rows_in']}, has {kept} + {dropped}"
            )


def _as_format(content: bytes, kind: str) -> bytes:
    if kind == "tsv":
        return content
    if kind == "tsv.gz":
        return gzip.compress(content, mtime=0)
    rows = [line.split("\t") for line in content.decode().splitlines()]
    names = [column["name"] for column in CONFIG["log"]["columns"]]
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    types = {column["name"]: column["type"] for column in CONFIG["log"]["columns"]}
    arrays = {
        name: pa.array(
            [int(value) if value.isdigit() else None for value in values] if types[name] == "int" else values,
            pa.int64() if types[name] == "int" else pa.string(),
        )
        for name, values in columns.items()
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _bad_config(world: World, draw: random.Random, folder: Path) -> Case:
    values = yaml.safe_load(world.config(folder).read_text(encoding="utf-8"))
    config = folder / "wrong.yaml"
    config.write_bytes(with_wrong_value(draw, values))
    if draw.random() < 0.3:
        config.write_bytes(mutated_copy(draw, config.read_bytes()))
    # A wrong `lake` or `data` must not lead out of the folder of the case.
    ended = _build(
        config, folder, "--set", f"lake={folder / 'lake'}", "--set", f"data={world.folder / 'raw'}"
    )
    return Case("a wrong configuration", "accepted" if ended.code == 0 else "refused")


def _bad_arguments(world: World, draw: random.Random, folder: Path) -> Case:
    words = [
        "--set",
        "--run-date",
        "2026-02-30",
        "x=1",
        "log.path=",
        "--config",
        "split.train_days=0",
        "é\x1b[2J",
    ]
    words += ["--wait", "-1", "--set=features=[]", "--set=lake", "=", "--help=1", "--profile", "\n"]
    chosen = draw.sample(words, draw.randint(1, 4))
    ended = run(
        [sys.executable, str(ROOT / "jobs/build_features.py"), *chosen, "--set", f"lake={folder / 'lake'}"],
        folder,
    )
    require_typed(ended)
    return Case(f"arguments {chosen}", "accepted" if ended.code == 0 else "refused")


PARTS: dict[str, Part] = {
    "kills": kills,
    "concurrent": concurrent,
    "disks": disks,
    "damage": damage,
    "inputs": inputs,
}
