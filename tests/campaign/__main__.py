"""make campaign: disturbs the jobs of a small lake, and ends with 1 if rows are lost or wrong, or an error is untyped.

Cases are numbered. The seed and the number determine a case, except for the instants at which other processes do
something. Each case is added to the record when it has ended. A campaign with the same seed continues behind the
last case of the record.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import table
from tests.campaign.parts import PARTS
from tests.campaign.world import KINDS, STEPS, Problem, World
from tests.processes import ROOT
from tests.standalone import standalone_cluster

RECORD = ROOT / "build/campaign.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make campaign", description=(__doc__ or "").split(": ", 1)[1])
    parser.add_argument("--seconds", type=float, default=900, help="for all parts together (900)")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal faults (0)")
    parser.add_argument("--part", action="append", choices=PARTS, help="a part; repeat it for several (all)")
    parser.add_argument("--case", type=int, help="run only the case of this number, of one part")
    parser.add_argument("--quick", action="store_true", help="disturb only build_features")
    parser.add_argument("--cluster", action="store_true", help="submit jobs to a standalone cluster")
    parser.add_argument(
        "--record", type=Path, default=RECORD, help="file of all cases (build/campaign.jsonl)"
    )
    parser.add_argument("--summary", action="store_true", help="only print the summary of the record")
    options = parser.parse_args(arguments)
    parts = options.part or list(PARTS)
    if options.case is not None and len(parts) != 1:
        parser.error("--case needs the --part whose case it is")
    failed = False
    if not options.summary:
        with tempfile.TemporaryDirectory(prefix="nightrank-campaign-") as scratch:
            world = World(Path(scratch), STEPS[:1] if options.quick else STEPS)
            with _submitting(world, options.cluster):
                began = time.monotonic()
                world.prepare()
                print(f"campaign: the lake took {time.monotonic() - began:.0f} s", flush=True)
                failed = _run(world, parts, options)
    print(_summary(read_record(options.record)))
    return int(failed)


@contextmanager
def _submitting(world: World, cluster: bool) -> Iterator[None]:
    """With a cluster, jobs are submitted to it. Otherwise they run in processes of this machine."""
    if not cluster:
        yield
        return
    folder = world.folder / "cluster"
    folder.mkdir()
    with standalone_cluster(folder) as started:
        lines = (ROOT / "conf/spark/local.conf").read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not line.startswith("spark.master ")]
        memory = "spark.executor.memory 512m"
        world.profile = folder / "cluster.conf"
        world.profile.write_text(
            "\n".join([*kept, f"spark.master {started.master}", memory, ""]), encoding="utf-8"
        )
        yield


def _run(world: World, parts: Sequence[str], options: argparse.Namespace) -> bool:
    """Runs cases until the time is over. Returns whether one of them has failed."""
    record: Path = options.record
    record.parent.mkdir(parents=True, exist_ok=True)
    if record.exists() and not record.read_bytes().endswith(b"\n"):
        with record.open("a", encoding="utf-8") as file:  # the last campaign was killed while it wrote
            file.write("\n")
    known = [entry for entry in read_record(record) if entry["seed"] == options.seed]
    numbers = {part: sum(entry["part"] == part for entry in known) for part in parts}
    spent = dict.fromkeys(parts, 0.0)
    if options.case is not None:
        entry = run_case(world, parts[0], options.seed, options.case)
        print(json.dumps(entry))
        return entry["problem"] is not None
    failed = False
    while sum(spent.values()) < options.seconds:
        part = min(parts, key=lambda name: spent[name])
        entry = run_case(world, part, options.seed, numbers[part])
        numbers[part] += 1
        spent[part] += entry["seconds"]
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if entry["problem"] is not None:
            failed = True
            words = f"--part {part} --seed {options.seed} --case {entry['number']}"
            print(f"{part} {entry['number']}: {entry['outcome']}: {entry['problem']}")
            print(f"repeat it: make campaign ARGS='{words}'", flush=True)
    return failed


def run_case(world: World, part: str, seed: int, number: int) -> dict[str, Any]:
    """Runs one case, and returns its entry of the record."""
    draw, began = random.Random(f"{seed}/{part}/{number}"), time.monotonic()
    what, outcome, problem = "", "", None
    try:
        case = PARTS[part](world, draw)
        what, outcome = case.what, case.outcome
    except Problem as error:
        outcome, problem = error.kind, str(error)
    except Exception:
        outcome, problem = "the campaign failed", traceback.format_exc()
    seconds = round(time.monotonic() - began, 2)
    return {
        "part": part,
        "seed": seed,
        "number": number,
        "what": what,
        "outcome": outcome,
        "problem": problem,
        "seconds": seconds,
    }


def read_record(path: Path) -> list[dict[str, Any]]:
    """Returns the entries of a record. The last line may be incomplete, if a campaign was killed."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


def _summary(entries: Sequence[dict[str, Any]]) -> str:
    """Returns a table with the number of cases of each part by outcome, and of each problem."""
    rows = []
    for part in PARTS:
        of_part = [entry for entry in entries if entry["part"] == part]
        outcomes = Counter(entry["outcome"] for entry in of_part if entry["problem"] is None)
        failed = sum(entry["problem"] is not None for entry in of_part)
        words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        hours = sum(entry["seconds"] for entry in of_part) / 3600
        rows.append([part, str(len(of_part)), f"{hours:.2f}", str(failed), words])
    counts = Counter(entry["outcome"] for entry in entries if entry["problem"] is not None)
    problems = ", ".join(f"{kind}: {counts[kind]}" for kind in (*KINDS, "the campaign failed"))
    return table(["part", "cases", "hours", "problems", "outcomes"], rows) + f"\n{problems}"


if __name__ == "__main__":
    # So that the folder of the lake is deleted when the campaign is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
