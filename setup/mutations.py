"""Measures which deliberate faults the tests of `make test-changed` find: python -m setup.mutations run.

`draw` prints functions of the product that a seed selects. A developer writes one fault for each function
into setup/mutations.yaml. `run` puts one fault at a time into a separate work tree, and runs the tests that
`make test-changed` chooses there. A fault is caught if a test fails with the fault and passes without it. If
`run` is interrupted, the next `run` continues.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from setup.environment import PACKAGES

ROOT = Path(__file__).parent.parent
FAULTS = ROOT / "setup/mutations.yaml"
RESULTS = ROOT / "build/mutations.jsonl"
_TREE = ROOT / "build/mutations"
_FEWEST_STATEMENTS = 3
_NO_TESTS = 5  # pytest's exit code if it ran no tests


@dataclass(frozen=True)
class Fault:
    """A deliberate fault.

    Attributes:
        file: the changed file, relative to the checkout.
        old: text that occurs in the file exactly once.
        new: the text that replaces it.
        effect: what goes wrong for a user.
    """

    file: str
    old: str
    new: str
    effect: str

    def applied(self, text: str) -> str:
        """Returns the text of the file with the fault.

        Raises:
            ValueError: the text to replace does not occur exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.old!r} occurs {text.count(self.old)} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def read_faults(path: Path) -> list[Fault]:
    """Reads the faults of a YAML file, which is a list of mappings with the attributes of `Fault`."""
    return [Fault(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def draw(root: Path, folders: Sequence[str], count: int, seed: int) -> list[str]:
    """Draws functions with at least three statements, each with equal probability, without repetition.

    Returns:
        `file:line name` of each function, in the order of the draw.
    """
    functions = [
        f"{path.relative_to(root).as_posix()}:{node.lineno} {node.name}"
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        for node in _functions(ast.parse(path.read_text(encoding="utf-8")))
    ]
    return random.Random(seed).sample(functions, min(count, len(functions)))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            statements = sum(isinstance(part, ast.stmt) for body in node.body for part in ast.walk(body))
            if statements >= _FEWEST_STATEMENTS + (ast.get_docstring(node) is not None):
                yield node


def run(faults: Sequence[Fault], arguments: Sequence[str], results: Path, tree: Path) -> None:
    """Tries the faults that have no result yet, and appends a line of JSON for each of them.

    Args:
        faults: the faults.
        arguments: further arguments of `setup.changed_tests`.
        results: the file of results, made if it does not exist.
        tree: a work tree of the checkout that nothing else uses.

    If a test also fails without the fault, the function prints the test and does not run it again.

    Raises:
        RuntimeError: the tests did not run.
    """
    broken: list[str] = []
    known = {(line["file"], line["old"]) for line in read_results(results)}
    results.parent.mkdir(parents=True, exist_ok=True)
    for number, fault in enumerate(faults, 1):
        if (fault.file, fault.old) in known:
            continue
        started = time.monotonic()
        failed = _failed_tests(fault, arguments, tree, broken)
        line = {
            "file": fault.file,
            "old": fault.old,
            "caught": bool(failed),
            "by": failed,
            "seconds": round(time.monotonic() - started, 1),
        }
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{number} {'caught' if failed else 'NOT CAUGHT'} {line['seconds']:.0f} s {fault.file}",
            flush=True,
        )


def _failed_tests(fault: Fault, arguments: Sequence[str], tree: Path, broken: list[str]) -> list[str]:
    """Returns the tests that fail with a fault and pass without it: the first one, or none.

    Args:
        fault, arguments, tree: as for `run`.
        broken: the tests that also fail without a fault. They are not run. The function adds further such
            tests.

    Raises:
        RuntimeError: the tests did not run.
    """
    path = tree / fault.file
    text = path.read_text(encoding="utf-8")
    while True:
        left_out = [word for test in broken for word in ("--deselect", test)]
        path.write_text(fault.applied(text), encoding="utf-8")
        try:
            done = _run_changed_tests(tree, [*arguments, *left_out])
        finally:
            path.write_text(text, encoding="utf-8")
        if done.returncode in (0, _NO_TESTS):
            return []
        failed: list[str] = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if not failed or failed[0] in broken:
            raise RuntimeError(f"the tests did not run:\n{(done.stdout + done.stderr)[-2000:]}")
        if _passes(tree, failed[0]):
            return failed[:1]
        print(f"{failed[0]} also fails without the fault, so it is left out", flush=True)
        broken.append(failed[0])


def _run_changed_tests(tree: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    options = ["-x", "-q", "-p", "no:cacheprovider", *arguments]
    command = [sys.executable, "-m", "setup.changed_tests", *options]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def _passes(tree: Path, test: str) -> bool:
    """Returns whether a test passes without the fault."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    return not subprocess.run(command, cwd=tree, capture_output=True, check=False).returncode


def read_results(path: Path) -> list[dict]:
    """Reads the results of earlier runs; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def prepare_tree(root: Path, tree: Path) -> None:
    """Makes or updates a work tree of the last commit, which uses the environment of this checkout."""
    if (tree / ".git").exists():
        for command in (["reset", "--quiet", "--hard"], ["checkout", "--quiet", "--detach", _head(root)]):
            subprocess.run(["git", *command], cwd=tree, check=True)
    else:
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--force", "--detach", str(tree), _head(root)],
            cwd=root,
            check=True,
        )
    for folder in (".venv", ".bootstrap"):
        link, target = tree / folder, (root / folder).resolve()
        if target.exists() and not link.exists():
            link.symlink_to(target)
    seconds = root / "build/test_seconds.json"
    if seconds.exists():
        (tree / "build").mkdir(exist_ok=True)
        shutil.copy(seconds, tree / "build")


def _head(root: Path) -> str:
    named = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    return named.stdout.strip()


def main() -> None:
    """Draws functions, checks that the faults apply, or tries the faults."""
    parser = argparse.ArgumentParser(prog="python -m setup.mutations", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawn = commands.add_parser("draw", help="print functions drawn by a seed")
    drawn.add_argument("--seed", type=int, default=43, help="seed (default: 43)")
    drawn.add_argument("--count", type=int, default=100, help="number of functions (default: 100)")
    tried = commands.add_parser("run", help="try the faults of setup/mutations.yaml that have no result yet")
    tried.add_argument("--results", type=Path, default=RESULTS, help="file of results")
    tried.add_argument("--every", type=int, default=1, help="only each N-th fault (default: 1)")
    commands.add_parser("check", help="say which faults no longer apply to the code")
    options, of_tests = parser.parse_known_args()
    if options.command == "draw":
        print(*draw(ROOT, PACKAGES, options.count, options.seed), sep="\n")
        return
    faults = read_faults(FAULTS)
    if options.command == "check":
        for fault in faults:
            try:
                fault.applied((ROOT / fault.file).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                print(error)
        return
    prepare_tree(ROOT, _TREE)
    run(faults[:: options.every], of_tests, options.results, _TREE)
    results = read_results(options.results)
    missed = [line["file"] for line in results if not line["caught"]]
    print(f"{len(results) - len(missed)} of {len(results)} faults caught; not caught: {missed or 'none'}")


if __name__ == "__main__":
    main()
