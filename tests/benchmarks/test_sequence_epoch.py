"""The benchmark of an epoch of SASRec: its log, and the plain model, held against what it must not see."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import sequence_epoch
from benchmarks.peers.plain_movielens import Adam
from benchmarks.peers.plain_sasrec import SASRec, train_epoch
from benchmarks.sequence_epoch import FEWEST, made_up, medians, ratios_of, trained_choices
from setup.console import SetupError


def test_the_log_has_about_the_choices_asked_for_and_follows_items() -> None:
    sequences = made_up(2_000, 300, 17_000)
    assert len(sequences) == 2_000
    assert sum(map(len, sequences)) == pytest.approx(17_000, rel=0.05)
    assert min(map(len, sequences)) == FEWEST
    assert {int(own.min()) for own in sequences} >= {1}
    assert max(int(own.max()) for own in sequences) == 300
    following: dict[int, list[int]] = {}
    for own in sequences:
        for before, after in pairwise(own):
            following.setdefault(int(before), []).append(int(after))
    shares = [np.bincount(after).max() / len(after) for after in following.values() if len(after) > 100]
    assert min(shares) > 0.4


def test_a_place_of_the_plain_model_sees_no_later_choice_and_no_padding() -> None:
    torch.manual_seed(0)
    model = SASRec(items=9, places=6, dim=8, blocks=2, dropout=0.0).eval()
    sequence = torch.tensor([[0, 0, 3, 4, 5, 6]])
    changed, shorter = torch.tensor([[0, 0, 3, 4, 9, 1]]), torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        torch.testing.assert_close(model(changed)[0, 2:4], model(sequence)[0, 2:4])
        torch.testing.assert_close(model(shorter)[0], model(sequence)[0, 2:])


def test_the_plain_model_learns_which_item_follows() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    follows = random.permutation(20)
    sequences = []
    for start in random.integers(0, 20, 300):
        own = [int(start)]
        for _ in range(6):
            own.append(int(follows[own[-1]]))
        sequences.append(np.array(own) + 1)
    model = SASRec(items=20, places=6, dim=16, blocks=1, dropout=0.0)
    optimizer = Adam(model.parameters())
    losses = [
        train_epoch(model, optimizer, sequences, batch=32, drawn=2, rate=0.01, random=random)
        for _ in range(8)
    ]
    assert losses[-1] < 0.3 < losses[0]


def test_a_ratio_is_the_peers_median_divided_by_ours_and_none_if_it_did_not_run() -> None:
    figures = medians({"ours": [2.0, 9.0, 1.0], "plain_torch": [5.0, 4.0, 6.0]})
    assert figures == {"ours": 2.0, "plain_torch": 5.0}
    assert ratios_of(figures, {"replay": "not installed"}) == {"plain_torch": 2.5, "replay": None}


def test_peers_train_on_the_choices_before_the_last_two() -> None:
    sequences = [np.arange(1, length + 1) for length in (3, 4, 7)]
    assert [own.tolist() for own in trained_choices(sequences)] == [[1, 2], [1, 2, 3, 4, 5]]


def test_the_start_of_a_process_is_not_a_part_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def starts_in(seconds: float) -> Callable[[int], None]:
        """A training with epochs of a second, the first of which also takes the time of the start."""
        start = [seconds]

        def train(epochs: int) -> None:
            nonlocal now
            now += epochs + (start.pop() if start else 0)

        return train

    def no_replay(*_: object, install: bool) -> None:
        raise SetupError("not installed")

    monkeypatch.setattr(sequence_epoch, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(sequence_epoch, "contender", lambda *_: starts_in(6.0))
    monkeypatch.setattr(sequence_epoch, "plain", lambda *_: starts_in(3.0))
    monkeypatch.setattr(sequence_epoch, "replay", no_replay)
    seconds, _ = sequence_epoch.measure([], 2, "cuda", install=False)
    assert seconds == {"ours": [1.0, 1.0], "plain_torch": [1.0, 1.0]}
