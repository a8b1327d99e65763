"""make fuzz: runs targets for some time each, and ends with 1 if an input fails."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz import harness, sanitized
from tests.fuzz.harness import TARGETS, Outcome, repeat, run_target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together (60)")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal inputs (0)")
    parser.add_argument(
        "--target", action="append", choices=TARGETS, help="a target; repeat it for several (default: all)"
    )
    parser.add_argument("--limit", type=float, default=30, help="seconds after which an input hangs (30)")
    parser.add_argument("--input", type=Path, help="run only this stored input of one target")
    parser.add_argument("--list", action="store_true", help="list the targets")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:14} {target.about}" for name, target in TARGETS.items()))
        return 0
    names = options.target or list(TARGETS)
    if options.input and len(names) != 1:
        parser.error("--input needs the --target whose input it is")
    if any(TARGETS[name].libraries for name in names) and not sanitized.runtime():
        parser.error("the compiler has no sanitizers: apt-get install g++, or set CXX")
    failed = False
    for name in names:
        outcome = run_target(
            name,
            TARGETS[name],
            seconds=options.seconds / len(names),
            seed=options.seed,
            limit_s=options.limit,
            data=options.input,
            out=harness.OUT,
        )
        _print(name, outcome)
        failed |= outcome.problem is not None
    return int(failed)


def _print(name: str, outcome: Outcome) -> None:
    if outcome.problem is None:
        print(f"{name}: {outcome.inputs:,} inputs without an error", flush=True)
        return
    print(f"{name}: {outcome.problem}\n{outcome.report[-6000:]}")
    if outcome.stored:
        print(f"repeat it: {repeat(name, outcome.stored)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
