"""Pages that tell of one thing twice: where lakes may be, what training reads, how long the set-up takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.load import load_config
from tests.processes import ROOT

CONFIG = str(ROOT / "conf/datasets/generated.yaml")
PAGES = ("docs/clusters.md", "docs/gpu.md", "docs/lakes.md")


def _sentences(page: str) -> Iterator[str]:
    text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    yield from re.split(r"(?<=[.;]) ", text)


def _lakes() -> list[str]:
    """The addresses of lakes in the table of docs/lakes.md."""
    rows = re.findall(r"^\| (.*`) \| yes \| yes \|", (ROOT / "docs/lakes.md").read_text(), re.MULTILINE)
    return [re.findall(r"\w+://", address)[-1] for address in rows]


def test_lakes_are_where_the_table_says(tmp_path: Path) -> None:
    lakes = _lakes()
    assert lakes == ["file://", "s3a://", "hdfs://", "gs://", "az://"]
    for scheme in lakes:
        assert load_config(CONFIG, [f"lake={scheme}{tmp_path}"]).lake
        assert load_config(CONFIG, [f"data={scheme}node/raw"]).data
    for scheme in ("http", "ftp", "dbfs"):
        with pytest.raises(ConfigError, match=f"{scheme}:// is not supported"):
            load_config(CONFIG, [f"lake={scheme}://host/lake"])


@pytest.mark.parametrize("page", PAGES[:2])
def test_no_page_denies_training_from_s3(page: str) -> None:
    """tests/training/test_staging.py: a plan of a lake on an object store reads its files from there."""
    (sentence,) = [text for text in _sentences(page) if re.match(r"[Tt]raining reads", text)]
    assert re.search(r"\b(both|either)\b", sentence), sentence


def test_the_set_up_takes_as_long_in_the_makefile_as_in_the_readme() -> None:
    readme = re.search(r"set-up took (\d+) minutes", (ROOT / "README.md").read_text(encoding="utf-8"))
    makefile = re.search(r"^setup: ## .*about (\d+) minutes", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert readme
    assert makefile
    assert readme[1] == makefile[1]
