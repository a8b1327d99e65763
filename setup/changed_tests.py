"""Runs the tests that depend on files changed since a commit: make test-changed (CONTRIBUTING.md).

A test file depends on the modules that it imports, and on the files and plug-ins that its strings name, such
as a job that it starts. It also depends on the dependencies of these files. Test files that are fewer imports
away from a changed file run first. A test file counts as nearer if a changed module has the same folder or
the same name. Test files that would exceed the time limit are left out, and the command prints their number.
tests/conftest.py records the seconds of each test file in build/test_seconds.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
SECONDS = "build/test_seconds.json"
# The seconds of a file's extended tests are stored under the name of the file with this suffix.
EXTENDED_SECONDS = " (extended)"
# Assumed seconds of a test file without recorded seconds. A Spark session starts in ten seconds.
_GUESS, _GUESS_WITH_SPARK = 3.0, 20.0
# Test files of these folders read the whole tree, so they depend on every file.
_WHOLE_TREE = "tests/contract/"
# If at most this many modules import a changed module, the names of these modules also select tests.
_FEW_MODULES = 3
# Strings of this length or longer are not searched for names of files and modules.
_LONGEST_TEXT = 200
# Fields of syntax nodes that contain no string, such as `ctx`, which says whether a name is read or set.
_WITHOUT_TEXTS = frozenset({"ctx", "op"})


@dataclass(frozen=True)
class Choice:
    """The test files to run and to leave out.

    Attributes:
        run: the test files to run, those nearest to a changed file first.
        left_out: the test files that also depend on a changed file, but would exceed the time limit.
        seconds: estimated seconds of the files `run` in one process.
    """

    run: tuple[str, ...]
    left_out: tuple[str, ...]
    seconds: float


def tracked_files(root: Path) -> list[str]:
    """Returns the files that git tracks, and new files that it does not ignore, relative to `root`."""
    listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard")
    return sorted(path for path in set(listed) if (root / path).is_file())


def changed_files(root: Path, since: str) -> list[str]:
    """Returns the files that were changed, added or deleted since a commit, committed or not.

    Raises:
        SystemExit: there is no such commit.
    """
    changed = _git(root, "diff", "--name-only", since, "--")
    return sorted({*changed, *_git(root, "ls-files", "--others", "--exclude-standard")})


def dependencies(root: Path, files: Sequence[str]) -> dict[str, set[str]]:
    """Maps each Python file to the files on which it depends directly.

    These are the modules that it imports, except for type checks, and the packages that contain these
    modules. Files and modules that its strings name are dependencies too, and so are the `conftest.py` files
    of its folder and of all parent folders. A module that computes names of modules and imports them depends
    on all modules of the packages that its strings name. If such a package is in a folder of another package,
    its modules are plug-ins, such as operators. A file in tests/ depends on the plug-ins whose names are
    strings in it.

    Args:
        root: the folder of the checkout.
        files: the files of the checkout, relative to `root`.
    """
    known = {*files}
    modules = {_module_of(path): path for path in files if path.endswith(".py")}
    names = defaultdict(list)
    for path in files:
        names[PurePosixPath(path).name].append(path)
    named = {name: paths[0] for name, paths in names.items() if len(paths) == 1}
    depends: dict[str, set[str]] = {}
    texts_of: dict[str, set[str]] = {}
    plugins: dict[str, set[str]] = defaultdict(set)
    for path in files:
        if not path.endswith(".py"):
            continue
        source = (root / path).read_text(encoding="utf-8")
        tree = ast.parse(source)
        needed: set[str] = set()
        names_of_module, texts = _imports_and_texts(tree, _module_of(path), path.endswith("__init__.py"))
        for name in names_of_module:
            needed |= {modules[part] for part in _with_packages(name) if part in modules}
        needed |= texts & known
        for text in texts:
            needed |= {named[text]} if text in named and text.endswith((".py", ".yaml", ".sh")) else set()
            if "." in text and (module := _longest(text, modules)):
                needed.add(module)
        loaded = _loaded_by_name(path, source, texts, modules)
        needed |= loaded
        for plugin in () if path.startswith("tests/") else loaded:
            if plugin.count("/") > 1:
                plugins[PurePosixPath(plugin).stem].add(plugin)
        needed |= {f"{folder}/conftest.py" for folder in PurePosixPath(path).parents} & known
        depends[path], texts_of[path] = needed - {path}, texts
    for path in (path for path in depends if path.startswith("tests/")):
        depends[path] |= set().union(*(plugins[name] for name in texts_of[path] & plugins.keys()))
    return depends


def _loaded_by_name(path: str, source: str, texts: set[str], modules: Mapping[str, str]) -> set[str]:
    """Returns the files of the packages from which a file imports modules whose names it computes.

    Args:
        path, source, texts: the file, its text and its short strings.
        modules: maps the modules of the checkout to their files.
    """
    if "import_module(" not in source:
        return set()
    folders = {text.replace(".", "/") for text in texts if modules.get(text, "").endswith("/__init__.py")}
    folders |= {str(PurePosixPath(path).parent)} if 'import_module(f"{__name__}' in source else set()
    return {other for other in modules.values() if str(PurePosixPath(other).parent) in folders}


def distances(
    depends: Mapping[str, set[str]], changed: Sequence[str], files: Sequence[str]
) -> dict[str, int]:
    """Returns, for each file that depends on a changed file, the smallest number of steps between the two.

    If a changed file is not Python, such as a C++ file, the Python files of its folder depend on it.
    """
    dependents: dict[str, set[str]] = defaultdict(set)
    for path, needs in depends.items():
        for need in needs:
            dependents[need].add(path)
    steps = dict.fromkeys(changed, 0)
    for path in changed:
        if not path.endswith(".py"):
            folder = PurePosixPath(path).parent
            beside = [other for other in depends if PurePosixPath(other).parent == folder]
            steps |= {other: min(steps.get(other, 1), 1) for other in beside if str(folder) != "."}
    frontier, step = [*steps], 0
    while frontier:
        step += 1
        new = {other for path in frontier for other in dependents[path] if other not in steps}
        steps |= dict.fromkeys(new, step)
        frontier = [*new]
    whole = {path for path in files if path.startswith(_WHOLE_TREE) and path not in steps}
    return steps | dict.fromkeys(whole, max(steps.values(), default=0) + 1)


def choose(
    steps: Mapping[str, int], seconds: Mapping[str, float], limit: float, changed: Sequence[str] = ()
) -> Choice:
    """Chooses test files until their seconds reach a limit. The nearest test file always runs.

    Hundreds of test files may have the same distance from a module. So a test file counts as one step nearer
    if its folder is tests/ followed by the folder of a changed module. It counts as another step nearer if
    its name contains the module's name: tests/storage/test_manifest.py for storage/manifest.py. If only a few
    modules depend directly on the changed modules, their names count too.

    Args:
        steps: maps files to their distance from a changed file (`distances`).
        seconds: maps every test file in `steps` to its estimated seconds.
        limit: the largest sum of seconds.
        changed: the changed files.
    """
    tests = [path for path in steps if _is_test(path)]
    run: list[str] = []
    left_out: list[str] = []
    total = 0.0
    modules = [PurePosixPath(path) for path in changed if path.endswith(".py")]
    direct = {path for path, step in steps.items() if step == 1 and not path.startswith("tests/")}
    names = {PurePosixPath(path).stem for path in direct} if len(direct) <= _FEW_MODULES else set()

    def distance(path: str) -> int:
        test = PurePosixPath(path)
        beside = any(test.parent == "tests" / module.parent for module in modules)
        namesake = any(module.stem in test.stem for module in modules)
        namesake = namesake or any(f"_{name}_" in f"{test.stem}_" for name in names)
        return steps[path] - beside - namesake

    for path in sorted(tests, key=lambda path: (distance(path), seconds[path], path)):
        if run and total + seconds[path] > limit:
            left_out.append(path)
        else:
            run.append(path)
            total += seconds[path]
    return Choice(tuple(run), tuple(left_out), total)


def expected_seconds(root: Path, tests: Sequence[str]) -> dict[str, float]:
    """Returns the estimated seconds of each test file: its last recorded seconds, or an assumed number.

    Seconds of its extended tests are added if they were recorded.
    """
    recorded = _recorded_seconds(root)

    def guess(path: str) -> float:
        uses_spark = "SparkSession" in (root / path).read_text(encoding="utf-8")
        return _GUESS_WITH_SPARK if uses_spark else _GUESS

    return {
        path: (recorded.get(path) or guess(path)) + recorded.get(path + EXTENDED_SECONDS, 0.0)
        for path in tests
    }


def _recorded_seconds(root: Path) -> dict[str, float]:
    try:
        recorded: dict[str, float] = json.loads((root / SECONDS).read_text())
    except FileNotFoundError:
        return {}
    return recorded


def main(arguments: Sequence[str] | None = None) -> int:
    """Chooses the tests, prints which tests are left out, and runs pytest.

    Returns the exit code of pytest, or 0 if there is nothing to run.
    """
    parser = argparse.ArgumentParser(prog="make test-changed", description=__doc__.splitlines()[0])
    parser.add_argument("--since", default="HEAD", help="a commit (default: HEAD, so uncommitted changes)")
    parser.add_argument("--minutes", type=float, default=3.0, help="limit for the whole run (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes that run the tests (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the chosen test files, and run nothing")
    options, of_pytest = parser.parse_known_args(arguments)
    changed = changed_files(ROOT, options.since)
    if not changed:
        print(
            f"nothing has changed since {options.since}; name another commit: make test-changed SINCE=HEAD~1"
        )
        return 0
    files = tracked_files(ROOT)
    steps = distances(dependencies(ROOT, files), changed, files)
    seconds = expected_seconds(ROOT, [path for path in steps if _is_test(path) and path in files])
    steps = {path: step for path, step in steps.items() if path in seconds or not _is_test(path)}
    choice = choose(steps, seconds, 60 * options.minutes * max(options.workers, 1), changed)
    _describe(choice, changed, options.since)
    if options.list or not choice.run:
        print(*choice.run, sep="\n")
        return 0
    workers = [] if options.workers < 2 else ["-n", str(options.workers)]
    # Extended tests run only if `make test-extended` has recorded their seconds.
    known = any(name.endswith(EXTENDED_SECONDS) for name in _recorded_seconds(ROOT))
    only = [] if known else ["-m", "not extended"]
    command = [sys.executable, "-m", "pytest", *workers, *only, *of_pytest, *choice.run]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _describe(choice: Choice, changed: Sequence[str], since: str) -> None:
    """Prints to standard error how many test files run, and which are left out."""
    print(
        f"{len(changed)} files have changed since {since}; {len(choice.run)} test files near them run "
        f"(about {choice.seconds:.0f} s in one process)",
        file=sys.stderr,
    )
    if choice.left_out:
        folders = Counter(str(PurePosixPath(path).parent) for path in choice.left_out)
        print(
            f"left out, because they would exceed the limit (`make test` runs them): {len(choice.left_out)} "
            f"test files: {', '.join(f'{folder} ({number})' for folder, number in sorted(folders.items()))}",
            file=sys.stderr,
        )


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and PurePosixPath(path).match("test_*.py")


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def _module_of(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _with_packages(module: str) -> Iterator[str]:
    """Yields a module and the packages that contain it. Importing the module runs all of them."""
    parts = module.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _longest(text: str, modules: Mapping[str, str]) -> str | None:
    """Returns the file of the module at the beginning of a dotted name; None if there is no such module."""
    parts = text.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    known = [name for name in _with_packages(text) if name in modules and "." in name]
    return modules[known[-1]] if known else None


def _imports_and_texts(tree: ast.Module, module: str, is_package: bool) -> tuple[list[str], set[str]]:
    """Returns the names that a module imports, also in functions, and its short strings.

    Blocks that only type checkers read are left out.
    """
    names: list[str] = []
    texts: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and len(node.value) < _LONGEST_TEXT:
                texts.add(node.value)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = _source_of(node, module, is_package)
            names += [f"{source}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        else:  # does the same as ast.iter_child_nodes, in half the time
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    pending += [part for part in value if isinstance(part, ast.AST)]
                elif isinstance(value, ast.AST) and name not in _WITHOUT_TEXTS:
                    pending.append(value)
    return names, texts


def _source_of(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Returns the full name of the module from which a statement imports names."""
    if not node.level:
        return node.module or ""
    above = module.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
    return ".".join([*above, *([node.module] if node.module else [])])


if __name__ == "__main__":
    sys.exit(main())
