"""The section of docs/extending.md about packages shows the code and the entry points that these tests install."""

from __future__ import annotations

import re
import tomllib

import pytest

from conf.plugins import KINDS
from tests.conftest import ROOT
from tests.extensions.packages import SHOP, SHOP_POINTS

WHOLE_PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
PAGE = WHOLE_PAGE.partition("## From your own package")[2]


def test_the_modules_of_the_page_are_those_of_the_package() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert blocks == [
        (SHOP / name).read_text(encoding="utf-8") for name in ("season.py", "newest.py", "npz.py")
    ]


def test_the_project_file_has_an_entry_point_of_each_kind() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    project = tomllib.loads(text)["project"]
    points = project["entry-points"]
    assert set(points) == {f"nightrank.{kind}" for kind in KINDS}
    assert {kind: points[f"nightrank.{kind}"] for kind in SHOP_POINTS} == SHOP_POINTS
    assert (project["name"], project["version"]) == ("shop-extensions", "1.0")


@pytest.mark.parametrize("heading, file", [("A model", "small_network.py"), ("A loss", "focal.py")])
def test_the_file_of_a_section_is_that_of_the_package(heading: str, file: str) -> None:
    section = WHOLE_PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL) == [
        (SHOP / file).read_text(encoding="utf-8")
    ]
