"""Counts modules, imports and class names: python -m setup.house (`make check` adds --check).

A module contains one idea, whatever its length. Many modules that only one other module imports are a sign of
a bad division. So are very long files, and two public classes with the same name.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from setup.environment import PACKAGES

ROOT = Path(__file__).parent.parent
# Limits of `--check`. Lower MOST_MODULES after you merge modules, and raise it only for a new idea.
MOST_MODULES = 520
MOST_LINES = 800
# Each plug-in has a class of this name, which is its contract (docs/extending.md).
_CONTRACT = "Settings"


@dataclass(frozen=True)
class House:
    """The counts of a checkout.

    Attributes:
        lines: maps each module of the product, as a path, to its number of lines.
        importers: maps each module to the modules of the product that import it, also in functions.
        classes: maps the name of each public class to the modules that define one.
        tree_lines: maps each folder of the checkout with Python files to their number of lines.
    """

    lines: Mapping[str, int]
    importers: Mapping[str, frozenset[str]]
    classes: Mapping[str, tuple[str, ...]]
    tree_lines: Mapping[str, int]

    @property
    def single(self) -> list[str]:
        """Returns the modules that exactly one other module imports."""
        return sorted(path for path, by in self.importers.items() if len(by) == 1)

    @property
    def neighbours(self) -> list[str]:
        """Returns the modules of `single` whose importer is in the same folder."""
        folder = {path: PurePosixPath(path).parent for path in self.lines}
        return [path for path in self.single if folder[path] == folder[next(iter(self.importers[path]))]]

    @property
    def repeated(self) -> dict[str, tuple[str, ...]]:
        """Returns the names of public classes that several modules define, except `Settings` of plug-ins."""
        return {name: paths for name, paths in self.classes.items() if len(paths) > 1 and name != _CONTRACT}


def count(root: Path, folders: Sequence[str] = PACKAGES) -> House:
    """Counts modules, imports and classes of the product.

    Args:
        root: the folder of the checkout.
        folders: the folders of the product.
    """
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    names = {path.relative_to(root).as_posix(): path for path in paths}
    modules = {_module_of(name): name for name in names}
    lines, importers, classes = {}, defaultdict(set), defaultdict(list)
    for name, path in names.items():
        text = path.read_text(encoding="utf-8")
        lines[name] = len(text.splitlines())
        tree = ast.parse(text)
        for imported in _imports(tree):
            source = next((modules[part] for part in imported if part in modules), None)
            if source not in (None, name):
                importers[source].add(name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(name)
    return House(
        lines,
        {name: frozenset(by) for name, by in importers.items() if name is not None},
        {name: tuple(sorted(paths)) for name, paths in classes.items()},
        _tree_lines(root),
    )


def problems(house: House) -> list[str]:
    """Returns one sentence for each problem: too many modules, too many lines, a class name used twice."""
    exceeded = []
    if len(house.lines) > MOST_MODULES:
        exceeded.append(
            f"{len(house.lines)} modules are more than {MOST_MODULES}: merge modules that contain one idea, "
            "or raise MOST_MODULES in setup/house.py if there is a new idea"
        )
    exceeded += [
        f"{path} has {lines} lines, more than {MOST_LINES}: divide it into modules of one idea each"
        for path, lines in house.lines.items()
        if lines > MOST_LINES
    ]
    exceeded += [
        f"{' and '.join(paths)} define a class {name}: rename one"
        for name, paths in sorted(house.repeated.items())
    ]
    return exceeded


def report(house: House) -> str:
    """Returns the counts of a checkout, such as those of its modules and lines, as text."""
    folders = Counter(path.split("/", 1)[0] for path in house.lines)
    longest = sorted(house.lines.items(), key=lambda item: -item[1])[:5]
    rows = [
        (
            "modules",
            f"{len(house.lines)}: {', '.join(f'{name} {number}' for name, number in folders.items())}",
        ),
        (
            "imported by one module",
            f"{len(house.single)}, of these by one in the same folder: {len(house.neighbours)}",
        ),
        ("longest files", ", ".join(f"{path} ({lines})" for path, lines in longest)),
        ("class names used twice", ", ".join(sorted(house.repeated)) or "none"),
        ("lines of Python", ", ".join(f"{name} {lines:,}" for name, lines in house.tree_lines.items())),
    ]
    return "\n".join(f"{name + ':':<26}{value}" for name, value in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the counts of this checkout; with `--check`, only its problems, and returns 1 if it has any."""
    parser = argparse.ArgumentParser(prog="python -m setup.house", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="print only what exceeds a limit")
    options = parser.parse_args(arguments)
    house = count(ROOT)
    exceeded = problems(house)
    print(
        "\n".join(exceeded) if options.check else report(house),
        end="\n" if exceeded or not options.check else "",
    )
    return 1 if options.check and exceeded else 0


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(tree: ast.Module) -> list[tuple[str, ...]]:
    """Returns, for each imported name, the modules that it may name or belong to, the longest name first."""
    imported: list[tuple[str, ...]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported += [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
    return imported


def _tree_lines(root: Path) -> dict[str, int]:
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    counted = {
        folder.name: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))
        for folder in folders
        if folder.name != "build"
    }
    return {name: lines for name, lines in counted.items() if lines}


if __name__ == "__main__":
    sys.exit(main())
