"""docs/tutorial.md: its commands run one after another, and print what the page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.processes import ROOT, environment

pytestmark = [pytest.mark.processes, pytest.mark.slow]

_BLOCK = re.compile(r"```(sh|text)\n(.*?)```", re.DOTALL)
FAST = "--set train.epochs=2 --set gate.replicates=100"


def blocks() -> list[tuple[str, str]]:
    """The blocks of the page in order: (`sh` or `text`, content)."""
    return _BLOCK.findall((ROOT / "docs/tutorial.md").read_text(encoding="utf-8"))


def steps() -> list[tuple[str, list[str]]]:
    """Each block of commands, with the parts of the output that the page shows, in order.

    A line `...` stands for any lines. The other lines are the beginnings of lines of the output.
    """
    blocks_with_output: list[tuple[str, list[str]]] = []
    for kind, content in blocks():
        if kind == "sh":
            blocks_with_output.append((content, []))
        else:
            blocks_with_output[-1][1].extend(
                line.rstrip() for line in content.splitlines() if line.strip(" .") != ""
            )
    return blocks_with_output


def run(commands: str, folder: Path) -> str:
    """Runs a block in a shell, as a reader who pastes it. Returns what it prints on both streams."""
    path = os.pathsep.join([str(ROOT / ".venv/bin"), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**environment(), "PATH": path, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}"
    return done.stdout


def require_shown(output: str, shown: list[str]) -> None:
    """Fails if a line of the page is not the beginning of a line of the output, in this order."""
    lines = iter(output.splitlines())
    for wanted in shown:
        assert any(line.startswith(wanted) for line in lines), f"{wanted!r} is not in\n{output}"


def test_the_helper_notices_a_line_that_is_missing_or_in_another_order() -> None:
    require_shown("a b\nc\n", ["a", "c"])
    for shown in (["c", "a"], ["d"], ["b"]):
        with pytest.raises(AssertionError, match="is not in"):
            require_shown("a b\nc\n", shown)


def follow(folder: Path, options: str) -> None:
    """Runs all blocks; `options` are added to the runs."""
    assert len(steps()) == 8
    for commands, shown in steps():
        require_shown(run(re.sub(r"(?m)^(nightrank run .*)$", rf"\1 {options}", commands), folder), shown)


def check_results(folder: Path) -> None:
    """The lists are complete, and so are the files for e-mails."""
    lake = LakePaths(str(folder / "lake/shop"))
    items = pd.read_csv(folder / "shop/items.csv").set_index("item")
    for date in ("2026-01-09", "2026-01-10"):
        lists = pd.read_parquet(lake.recommendations.partition(date).path)
        assert (lists.groupby("user_id").size() == 10).all()
        assert lists.user_id.nunique() == 200
        (path,) = (folder / f"mail/dt={date}").glob("*.csv")
        mail = pd.read_csv(path, dtype=str, keep_default_na=False)
        assert len(mail) == 200
        first = lists[lists.position == 1].set_index("user_id").item_id
        assert mail.set_index("user_id").item_1.to_dict() == first.to_dict()
        assert mail.title_1.tolist() == items.title[mail.item_1].tolist()
        assert mail.image_10.tolist() == items.image[mail.item_10].tolist()
    report = (folder / "lake/shop/reports/2026-01-10.html").read_text(encoding="utf-8")
    assert 'href="https://shop.example/pictures/sku-' in report
    spec = json.loads(next((folder / "lake/shop/workflow").rglob("feature_spec.json")).read_text())
    assert not {"title", "image"} & {feature["name"] for feature in spec["features"]}


def lift_of(folder: Path, date: str) -> float:
    """How many times more users click an item of their list than one of the most popular items."""
    partition = LakePaths(str(folder / "lake/shop")).measures.partition(date)
    return float(read_manifest(partition).facts["lift"])


def test_the_commands_of_the_page_work_with_a_short_training(tmp_path: Path) -> None:
    follow(tmp_path, FAST)
    check_results(tmp_path)


@pytest.mark.extended
def test_the_lists_of_the_page_are_better_than_popularity(tmp_path: Path) -> None:
    follow(tmp_path, "")
    check_results(tmp_path)
    assert min(lift_of(tmp_path, date) for date in ("2026-01-08", "2026-01-09")) > 1.2
