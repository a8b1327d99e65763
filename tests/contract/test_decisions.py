"""The pages of docs/decisions: each number has one anchor, and references in the repository lead to anchors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.processes import ROOT

FOLDER = Path("docs/decisions")
INDEX = FOLDER / "README.md"
SUFFIXES = (
    ".md",
    ".py",
    ".yaml",
    ".yml",
    ".sh",
    ".conf",
    ".in",
    ".gradle",
    ".cpp",
    ".h",
    ".patch",
    "Makefile",
)
SKIPPED = ("build", "__pycache__", "demo_out", "lake", "mlruns", "work")

_ANCHOR = re.compile(r'<a id="([^"]*)"></a>')
_NUMBER = re.compile(r"\d{4}")
# What a link to a page of decisions may be called in a text: decisions/<page>.md, with or without an anchor.
_REFERENCE = re.compile(r"\bdecisions/([\w.-]*\w)(?:#([\w-]*))?")
_LINK = re.compile(r"\]\(([^)\s]*)\)")
_NAMED = re.compile(r"\b[Dd]ecisions? (\d{4})\b")


def plain(text: str) -> str:
    """Returns a Markdown text without what stands in backticks."""
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_in(root: Path) -> dict[str, list[str]]:
    """Maps the name of each page to its anchors, in order."""
    return {
        path.name: _ANCHOR.findall(plain(path.read_text(encoding="utf-8")))
        for path in sorted((root / FOLDER).glob("*.md"))
    }


def files_in(root: Path) -> Iterator[Path]:
    """Yields the text files of the repository, relative to the root."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(files):
            if name.endswith(SUFFIXES):
                yield (Path(folder) / name).relative_to(root)


def broken_numbers(anchors: Mapping[str, list[str]]) -> list[str]:
    """Returns what is wrong with the numbers: not exactly one anchor, or an anchor that is no number."""
    every = [anchor for names in anchors.values() for anchor in names]
    last = max((int(name) for name in every if _NUMBER.fullmatch(name)), default=0)
    expected = [f"{number:04d}" for number in range(1, max(last, 104) + 1)]
    wrong = [f"{name} has {every.count(name)} anchors" for name in expected if every.count(name) != 1]
    return wrong + [f"the anchor {name} is no number" for name in every if not _NUMBER.fullmatch(name)]


def broken_references(root: Path) -> list[str]:
    """Returns the references to pages or numbers of decisions that do not exist, as "file: reference"."""
    anchors = anchors_in(root)
    numbers = {name for names in anchors.values() for name in names}
    broken = []
    for file in files_in(root):
        if file == Path("tests/contract/test_decisions.py"):
            continue
        text = (root / file).read_text(encoding="utf-8")
        references = [(found[0], found[1], found[2]) for found in _REFERENCE.finditer(text)]
        if file.parent == FOLDER:
            inside = [target.partition("#") for target in _LINK.findall(plain(text)) if "/" not in target]
            references += [(f"{page}#{anchor}", page or file.name, anchor) for page, _, anchor in inside]
            numbered = re.findall(r"\((\d{4})[,)]", plain(text))
        else:
            numbered = _NAMED.findall(text)
        broken += [
            f"{file}: {reference}"
            for reference, page, anchor in references
            if not page.endswith(".html")
            and (page not in anchors or anchor not in (None, "", *anchors[page]))
        ]
        broken += [f"{file}: {number}" for number in numbered if number not in numbers]
    return broken


def test_each_number_has_one_anchor() -> None:
    assert broken_numbers(anchors_in(ROOT)) == []


def test_references_lead_to_a_page_and_an_anchor() -> None:
    assert broken_references(ROOT) == []


def test_a_paragraph_begins_with_its_number() -> None:
    """So the number is also found by a search in the text."""
    for page in anchors_in(ROOT):
        text = (ROOT / FOLDER / page).read_text(encoding="utf-8")
        for number, paragraph in re.findall(r'<a id="(\d+)"></a>(.*?)(?=\n\n|\n\* |\Z)', text, re.DOTALL):
            if page != INDEX.name:
                assert re.search(rf"\({number}, \d{{4}}-\d\d-\d\d", paragraph), f"{page}: {number}"


def test_the_index_lists_each_number_of_each_page() -> None:
    index = (ROOT / INDEX).read_text(encoding="utf-8")
    anchors = anchors_in(ROOT)
    rows = {
        row[2]: (row[1], re.findall(r"\[(\d{4})\]\(([^)]*)\)", row[3]))
        for row in re.finditer(r"^\| \[(.*?)\]\(([\w-]+\.md)\) \| (.*) \|$", index, re.MULTILINE)
    }
    pages = sorted(set(anchors) - {INDEX.name})
    assert sorted(rows) == pages
    for page in pages:
        title, numbers = rows[page]
        assert numbers == [(number, f"{page}#{number}") for number in sorted(anchors[page])], page
        first = (ROOT / FOLDER / page).read_text(encoding="utf-8").partition("\n")[0]
        assert first == f"# {title}"


def test_the_site_has_every_page_in_its_navigation() -> None:
    nav = yaml.safe_load((ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    (section,) = [entry["Decisions"] for entry in nav if "Decisions" in entry]
    assert section[0] == str(INDEX)
    assert sorted(section) == sorted(str(FOLDER / page) for page in anchors_in(ROOT))


PAGE = '# Title\n\n<a id="0001"></a>**A (0001, 2026-11-21).** [b](b.md#0002)\n'


@pytest.mark.parametrize(
    "file, text, broken",
    [
        ("docs/decisions/a.md", PAGE, []),
        ("docs/decisions/a.md", PAGE.replace("b.md#0002", "b.md#0003"), ["b.md#0003"]),
        ("docs/decisions/a.md", PAGE.replace("b.md", "c.md"), ["c.md#0002"]),
        ("docs/x.md", "[why](decisions/a.md#0001), decisions 0002", []),
        ("docs/x.md", "[why](decisions/a.md#0002)", ["decisions/a.md#0002"]),
        ("docs/x.md", "decision 0003", ["0003"]),
        ("etl/x.py", "# docs/decisions/b.md#0002", []),
        ("etl/x.py", "# see docs/decisions/0002.", ["decisions/0002"]),
        ("etl/x.py", "# see docs/decisions/0002-old-name.md", ["decisions/0002-old-name.md"]),
    ],
)
def test_a_broken_reference_is_found(tmp_path: Path, file: str, text: str, broken: list[str]) -> None:
    files = {
        "docs/decisions/a.md": PAGE,
        "docs/decisions/b.md": '<a id="0002"></a>**B (0002, 2026-11-21).**\n',
    }
    for name, content in {**files, file: text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert broken_references(tmp_path) == [f"{file}: {reference}" for reference in broken]


def test_a_missing_and_a_doubled_number_are_found() -> None:
    numbers = [f"{number:04d}" for number in range(1, 105)]
    assert broken_numbers({"a.md": numbers}) == []
    assert broken_numbers({"a.md": numbers[:-1]}) == ["0104 has 0 anchors"]
    assert broken_numbers({"a.md": numbers, "b.md": ["0007"]}) == ["0007 has 2 anchors"]
    assert broken_numbers({"a.md": [*numbers, "0106"]}) == ["0105 has 0 anchors"]
    assert broken_numbers({"a.md": [*numbers, "why"]}) == ["the anchor why is no number"]
