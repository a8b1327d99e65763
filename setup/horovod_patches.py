"""Reads and applies the patches of Horovod's sources, the files of setup/horovod.

The patches are unified diffs; each begins with an explanation. They are applied without the program `patch`,
because small containers do not have it. The lines of each hunk must occur in the file exactly once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from setup.console import SetupError

FOLDER = Path(__file__).with_name("horovod")
_NO_FILE = "/dev/null"
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True)
class Change:
    """One hunk of a diff, which replaces `old` by `new` in a file. If `old` is empty, it creates the file."""

    file: str
    old: str
    new: str


def patch_files(folder: Path = FOLDER) -> list[Path]:
    """The patches, in the order in which they are applied."""
    return sorted(folder.glob("*.patch"))


def read_changes(folder: Path = FOLDER) -> list[Change]:
    """The hunks of all patches."""
    return [change for path in patch_files(folder) for change in _changes(path)]


def _changes(path: Path) -> list[Change]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    changes: list[Change] = []
    source, target, at = "", "", 0
    while at < len(lines):
        line, at = lines[at], at + 1
        if line.startswith("--- "):
            source = _name(line)
        elif line.startswith("+++ "):
            target = _name(line)
        elif header := _HUNK.match(line):
            counts = [int(count) if count is not None else 1 for count in header.groups()]
            old, new, at = _hunk(lines, at, counts)
            changes.append(Change(target, "" if source == _NO_FILE else old, new))
    return changes


def _name(line: str) -> str:
    """The path in a header line of a diff, such as `--- a/setup.py`, without the prefix a/ or b/."""
    name = line.split()[1]
    return name if name == _NO_FILE else name.split("/", 1)[1]


def _hunk(lines: list[str], at: int, counts: list[int]) -> tuple[str, str, int]:
    """Returns the old text, the new text and the index of the line after a hunk.

    `counts` are the number of old lines and the number of new lines.
    """
    old: list[str] = []
    new: list[str] = []
    while len(old) < counts[0] or len(new) < counts[1]:
        line = lines[at] if lines[at] != "\n" else " \n"  # editors remove the space from an empty line
        mark, text = line[0], line[1:]
        if mark in " -":
            old.append(text)
        if mark in " +":
            new.append(text)
        at += 1
    return "".join(old), "".join(new), at


def apply(source: Path, changes: list[Change]) -> None:
    """Applies the changes to Horovod's sources in the folder `source`.

    Raises SetupError if the patches were written for a different version of a file.
    """
    for change in changes:
        path = source / change.file
        if not change.old:
            if path.exists():
                raise SetupError(
                    f"a patch in setup/horovod creates {change.file}, but this version of Horovod already "
                    "has this file: correct the patch"
                )
            path.write_text(change.new, encoding="utf-8")
            continue
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if (count := text.count(change.old)) != 1:
            raise SetupError(
                f"a patch in setup/horovod cannot be applied to {change.file} of this version of Horovod: "
                f"{change.old.strip()!r} occurs in this file {count} times instead of once; correct the patch"
            )
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")
