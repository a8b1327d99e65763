"""Tests of the parts of benchmarks/lists.py that a folder keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import list_parts
from benchmarks.list_parts import PEERS, PRODUCT, Parts, Peer, code_digest, task_digest
from tests.benchmarks.test_list_environments import chains

PEER = Peer(
    [np.arange(6).reshape(2, 3), np.ones((2, 3), np.int64)],
    [np.zeros((2, 3), np.int64)],
    {"a": [1, 0.5]},
    {"ncf": [np.arange(4).reshape(2, 2), np.ones((2, 2), np.int64)]},
)


class Computed:
    """Counts how often a part is computed."""

    def __init__(self, peer: Peer = PEER) -> None:
        self.peer, self.times = peer, 0

    def __call__(self) -> Peer:
        self.times += 1
        return self.peer


def test_a_kept_part_is_read_again_as_it_was(tmp_path: Path) -> None:
    compute = Computed()
    Parts(tmp_path / "kept").part("ours", {"seed": 0}, compute)
    parts = Parts(tmp_path / "kept")
    again = parts.part("ours", {"seed": 0}, compute)
    assert compute.times == 1
    assert [one.tolist() for one in again.lists] == [one.tolist() for one in PEER.lists]
    assert [one.tolist() for one in again.train_lists] == [one.tolist() for one in PEER.train_lists]
    assert again.facts == PEER.facts
    assert list(again.samples) == ["ncf"]
    assert [one.tolist() for one in again.samples["ncf"]] == [one.tolist() for one in PEER.samples["ncf"]]
    assert [file.name for file in (tmp_path / "kept").iterdir()] == parts.read


def test_a_part_of_other_options_is_computed(tmp_path: Path) -> None:
    compute = Computed()
    for decides in ({"seed": 0}, {"seed": 1}, {"seed": 0, "k": 5}):
        Parts(tmp_path).part("ours", decides, compute)
    assert compute.times == 3


def test_nothing_is_kept_without_a_folder_or_without_lists(tmp_path: Path) -> None:
    compute = Computed()
    for _ in range(2):
        Parts().part("ours", {}, compute)
    assert compute.times == 2
    refused = Computed(Peer(facts={"reason": "not installed"}))
    for _ in range(2):
        assert Parts(tmp_path).part("als", {}, refused).facts == {"reason": "not installed"}
    assert refused.times == 2
    assert list(tmp_path.iterdir()) == []


def test_a_changed_file_of_the_code_changes_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_parts, "ROOT", tmp_path)
    (tmp_path / "etl/raw").mkdir(parents=True)
    source, other = tmp_path / "etl/raw/file_columns.py", tmp_path / "etl/notes.md"
    source.write_text("1")
    first = code_digest(["etl/**/*"])
    other.write_text("not code")
    assert code_digest(["etl/**/*"]) == first
    source.write_text("2")
    assert code_digest(["etl/**/*"]) != first


def test_the_patterns_match_files_of_every_folder_of_the_product() -> None:
    for pattern in (*PEERS, *PRODUCT):
        assert any(path.is_file() for path in list_parts.ROOT.glob(pattern)), pattern


def test_every_array_of_a_task_changes_its_digest() -> None:
    task = chains(users=4)
    changed = task.train.copy()
    changed.indices[0] = 11 if changed.indices[0] != 11 else 10
    others = [
        replace(task, train=changed),
        replace(task, test=task.test + 1),
        replace(task, users=task.users + "x"),
    ]
    digests = {task_digest(one) for one in (task, *others)}
    assert len(digests) == 4
    assert task_digest(chains(users=4)) in digests
