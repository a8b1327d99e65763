"""docs/operators is what the docstrings say, and misses no operator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.ops.pages import FAMILIES, pages

FOLDER = Path(__file__).parents[2] / "docs" / "operators"


def test_every_operator_is_on_one_page() -> None:
    named = Counter(name for _, _, names in FAMILIES.values() for name in names)
    assert named == Counter([*OPERATORS, *FRAME_OPERATORS])


def test_the_pages_are_up_to_date() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == pages(), "run `make docs`"


def test_every_operator_shows_what_it_does_in_a_table() -> None:
    for name in (*OPERATORS, *FRAME_OPERATORS):
        page = next(text for text in pages().values() if f"\n## {name}\n" in text)
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert "|---" in section, name
