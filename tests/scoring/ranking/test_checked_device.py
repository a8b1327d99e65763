"""Lists and rows that are scored on a device that is not the CPU (tests/checked_device.py) are those of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from scoring.model import predictor as predictor_module
from scoring.model.predictor import load_predictor
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.recommender import ListRanker
from scoring.requests import ModelRequest
from scoring.rules.request import rules_request
from tests.checked_device import checked_device
from tests.scoring.ranking import test_blend
from tests.scoring.ranking.test_history_lists import ITEMS, NAMES, USERS, recommender_of, sides
from tests.scoring.ranking.test_recommender import batch_of, lists_of
from tests.scoring.reference_scores import ReferenceScores
from tests.scoring.rules.test_rules import RUN_DATE, boost, cap, explore, rules_of, write_shelves
from tests.training.architectures import VARIANTS

CPU = torch.device("cpu")
ALL = [*dict.fromkeys([*VARIANTS, *NAMES])]


@pytest.fixture
def device() -> Iterator[torch.device]:
    with checked_device() as (device, _):
        yield device


def on(device: torch.device, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ListRanker:
    """A recommender whose model was loaded on the device."""
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(predictor_module, "choose_device", lambda *_: device)
        return recommender_of(name, folder)


def asked() -> list[list[int] | None]:
    """Candidates of each user: a list of some length, all items, none."""
    draw = np.random.default_rng(4)
    chosen: list[list[int] | None] = [draw.permutation(ITEMS)[: user % 13].tolist() for user in range(USERS)]
    chosen[5] = chosen[6] = chosen[20] = None
    return chosen


def assert_equal_lists(mine: pd.DataFrame, other: pd.DataFrame) -> None:
    """Equal up to rounding: items whose scores differ by less may change places."""
    keys = ["user_key", "position"]
    assert mine[keys].values.tolist() == other[keys].values.tolist()
    np.testing.assert_allclose(mine.score, other.score, atol=1e-5)
    changed = mine.item_key.to_numpy() != other.item_key.to_numpy()
    assert changed.mean() < 0.02


@pytest.mark.parametrize("name", ALL)
def test_lists_of_every_architecture(
    name: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = on(device, name, tmp_path / "device", monkeypatch)
    other = on(CPU, name, tmp_path / "cpu", monkeypatch)
    assert {tensor.device for tensor in mine.predictor.model.state_dict().values()} == {device}
    users = batch_of(sides()[0], asked())
    lists = lists_of(mine, users)
    assert len(lists) > 150
    assert_equal_lists(lists, lists_of(other, users))
    # With item parts that are computed again for each block of users.
    scorer = PairScorer(mine.predictor, mine.items.side, 0)
    anew = replace(mine, list_scorer=replace(mine.list_scorer, pair_scorer=scorer))
    assert_equal_lists(lists_of(anew, users), lists)


@pytest.mark.parametrize("name", ALL)
def test_probabilities_of_rows(
    name: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = on(device, name, tmp_path / "device", monkeypatch).predictor
    other = on(CPU, name, tmp_path / "cpu", monkeypatch).predictor
    draw = np.random.default_rng(1)
    dense = torch.from_numpy(draw.normal(size=(90, 2)).astype(np.float32))
    ids = [draw.integers(0, 5, (90, 1)), draw.integers(0, 30, (90, 7))]
    categorical = torch.from_numpy(np.concatenate(ids, axis=1))
    scored = mine.probabilities(dense, categorical)
    assert scored.device == device
    torch.testing.assert_close(scored.cpu(), other.probabilities(dense, categorical), rtol=1e-4, atol=1e-5)


def test_a_part_of_the_items_left_on_the_cpu_is_found(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommender = on(device, "dlrm", tmp_path / "device", monkeypatch)
    with pytest.raises(RuntimeError, match="tensors on different devices"):
        PairScorer(recommender.predictor, recommender.items.side.to(CPU))


@pytest.mark.parametrize("boosted", [True, False])
def test_lists_with_rules_and_a_blend(
    reference: ReferenceScores,
    device: torch.device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    boosted: bool,
) -> None:
    write_shelves(tmp_path, reference)
    settings = {**cap(2), **explore(0.4), **(boost(red=4.0) if boosted else {})}
    rules = rules_request(rules_of(tmp_path, **settings), test_blend.K, RUN_DATE, {})
    candidates, scores = test_blend.candidates_of(len(reference.users))
    users = test_blend.with_scores(batch_of(reference.users, candidates=list(candidates)), scores)
    expected = lists_of(test_blend.recommender_of(reference, rules=rules), users)
    monkeypatch.setattr(predictor_module, "choose_device", lambda *_: device)
    assert_equal_lists(lists_of(test_blend.recommender_of(reference, rules=rules), users), expected)


@pytest.mark.parametrize("name", ["dlrm", "deepfm", "sasrec"])
def test_tables_of_8_bits(
    name: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(CPU, name, tmp_path / "model", monkeypatch)
    request = ModelRequest(str(tmp_path / "model/model"), "cpu", 40, embeddings="int8")
    dense, categorical = torch.zeros(9, 2), torch.arange(72).view(9, 8) % 5
    expected = load_predictor(request, None, 1).probabilities(dense, categorical)
    monkeypatch.setattr(predictor_module, "choose_device", lambda *_: device)
    scored = load_predictor(request, None, 1).probabilities(dense, categorical)
    torch.testing.assert_close(scored.cpu(), expected, rtol=1e-4, atol=1e-5)
