"""The campaign finds what must not happen, records its cases and continues; and some cases of the real one."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.campaign import __main__ as campaign
from tests.campaign import parts
from tests.campaign.parts import Case
from tests.campaign.world import (
    STEPS,
    Before,
    Ended,
    Problem,
    World,
    contents,
    require_equal,
    require_typed,
    require_whole,
)


def test_cases_are_numbered_recorded_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[float] = []

    def part(world: World, draw: random.Random) -> Case:
        drawn.append(draw.random())
        if len(drawn) == 4:
            raise Problem("lost rows", "a table is gone")
        return Case("a fault", "healed")

    record = tmp_path / "record.jsonl"
    monkeypatch.setattr(campaign, "PARTS", {"kills": part, "inputs": part})
    monkeypatch.setattr(World, "prepare", lambda self: None)
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    words = ["--seconds", "2", "--seed", "5", "--record", str(record)]
    assert campaign.main(words) == 0
    with record.open("a") as file:
        file.write('{"part": "kil')  # the campaign was killed
    assert campaign.main(words) == 1
    entries = campaign.read_record(record)
    assert [(entry["part"], entry["number"]) for entry in entries] == [
        ("kills", 0),
        ("inputs", 0),
        ("kills", 1),
        ("inputs", 1),
    ]
    assert len(set(drawn)) == 4
    assert entries[-1]["outcome"] == "lost rows"
    printed = capsys.readouterr().out
    assert "make campaign ARGS='--part inputs --seed 5 --case 1'" in printed
    assert "lost rows: 1, wrong rows: 0" in printed
    assert campaign.main([*words, "--part", "inputs", "--case", "0"]) == 0
    assert drawn[-1] == drawn[1]


def test_untyped_ends_are_problems() -> None:
    require_typed(Ended(3, 1.0, False, "error: …"))
    with pytest.raises(Problem, match="exit code is 1"):
        require_typed(Ended(1, 1.0, False, ""))
    with pytest.raises(Problem, match="KeyError") as raised:
        require_typed(Ended(4, 1.0, False, "Traceback (most recent call last):\nKeyError"))
    assert raised.value.kind == "traceback"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A lake with features, and the lake before."""
    world = World(tmp_path_factory.mktemp("campaign"), STEPS[:1])
    world.prepare()
    return world


@pytest.mark.processes
def test_lost_and_wrong_rows_are_seen(world: World) -> None:
    """A partition is lost. Then one has the rows of another day, with a manifest that describes them."""
    (job,) = world.jobs
    folder = world.case(world.finished)
    require_equal(folder, job.becomes, True, "nothing")
    require_whole(folder, job, "nothing")
    (day, other) = sorted(folder.glob("lake/features/*/dt=*"))[:2]
    name = str(day.relative_to(folder / "lake"))
    text = (day / "_MANIFEST.json").read_text()
    (day / "_MANIFEST.json").unlink()
    with pytest.raises(Problem, match="missing") as lost:
        require_equal(folder, job.becomes, True, "a loss")
    assert lost.value.kind == "lost rows"
    with pytest.raises(Problem, match=f"{name} is gone"):
        require_whole(folder, Before(job.step, job.folder, 1, job.becomes, job.becomes), "a loss")
    strange = json.loads((other / "_MANIFEST.json").read_text())["files"]
    for entry, of_other in zip(json.loads(text)["files"], strange, strict=True):
        (day / entry["path"]).unlink()
        shutil.copy(other / of_other["path"], day / entry["path"])
    (day / "_MANIFEST.json").write_text(text)
    with pytest.raises(Problem, match=r"a manifest does not describe|differs from") as wrong:
        _require_all(folder, job)
    assert wrong.value.kind == "wrong rows"


def _require_all(folder: Path, job: Before) -> None:
    """Another number of rows contradicts the manifest; the same number only gives other rows."""
    require_whole(folder, job, "wrong rows")
    require_equal(folder, job.becomes, True, "wrong rows")


@pytest.mark.processes
@pytest.mark.parametrize("part", list(parts.PARTS))
def test_cases_of_every_part_end_well(world: World, part: str) -> None:
    entry = campaign.run_case(world, part, 20261129, 0)
    assert entry["problem"] is None, entry
    assert entry["what"]


@pytest.mark.processes
def test_a_reader_that_gets_other_values_is_a_problem(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parts._undamaged.cache_clear()
    known = contents(world.finished)
    monkeypatch.setattr(parts, "_undamaged", lambda _: {"features": "other values"})
    monkeypatch.setattr(parts, "_damage", lambda path, draw: "no damage")
    with pytest.raises(Problem, match="gets other values") as wrong:
        parts.damage(world, random.Random(0))
    assert wrong.value.kind == "wrong rows"
    assert contents(world.finished) == known
