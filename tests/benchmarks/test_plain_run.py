"""The plain script of the benchmark of a retraining run, compared with other computations of the same."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import metrics
from benchmarks.criteo_shapes import spec_of
from benchmarks.peers import plain_run
from benchmarks.peers.plain_data import CATEGORICAL, DENSE, FIRST_ID, NULL_ID, OOV_ID, encode, fit, read_days
from benchmarks.peers.plain_lists import (
    CONTEXT_COLUMNS,
    CONTEXT_DENSE,
    ITEM_COLUMNS,
    ITEM_DENSE,
    Side,
    best_items,
)
from benchmarks.peers.plain_model import (
    BATCH,
    DLRM,
    LogisticRegression,
    OptimizerState,
    Rows,
    Trainer,
    rate_factor,
)
from benchmarks.peers.plain_steps import auc
from conf.types import ModelConfig, Train
from training.loop.training_loop import learning_rate_factor
from training.models import build_model

CARDINALITIES = [40, 30, *([6] * 24)]
DAYS = [f"2026-01-{day:02}" for day in range(1, 10)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restores the number of torch's threads, which the script sets to 1."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def row(rng: np.random.Generator, **values: str) -> str:
    fields = {"label": str(rng.integers(2)), **{name: str(rng.integers(-3, 90)) for name in DENSE}}
    fields |= {name: f"v{rng.integers(4)}" for name in CATEGORICAL}
    fields |= {"C1": f"u{rng.integers(12)}", "C2": f"i{rng.integers(20)}"}
    return "\t".join((fields | values).values())


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of nine days with two files each. Every file has five malformed rows."""
    folder, rng = tmp_path_factory.mktemp("log"), np.random.default_rng(0)
    for day in DAYS:
        for part in range(2):
            lines = [row(rng) for _ in range(60)]
            lines[:2] = [row(rng, I3="", C5=""), row(rng, I1="+7", C7="")]
            lines[20:20] = [row(rng, label="2"), row(rng, I13="n/a"), row(rng, C1=""), row(rng, C2="")]
            lines.append(lines[0] + "\t0")
            path = folder / f"dt={day}/clicks-{part}.tsv"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
    return folder


def good_rows(raw: Path, day: str) -> list[list[str]]:
    """The good rows of a day, in the order of its files."""
    lines = [line for path in sorted((raw / f"dt={day}").iterdir()) for line in path.read_text().splitlines()]
    rows = [line.split("\t") for line in lines]
    return [
        fields
        for fields in rows
        if len(fields) == 40 and fields[0] in "01" and "n/a" not in fields and fields[14] and fields[15]
    ]


def test_rows_and_their_encoding(raw: Path) -> None:
    days = read_days(raw, DAYS[:3], 2)
    assert sum(file.dropped for day in days for file in day) == 3 * 2 * 5
    train = [file for day in days[:2] for file in day]
    encoding = fit(train, None)
    log = encode([file for day in days for file in day], encoding, 2)
    rows = [fields for day in DAYS[:3] for fields in good_rows(raw, day)]
    num_train = sum(len(good_rows(raw, day)) for day in DAYS[:2])
    assert log.labels.tolist() == [float(fields[0]) for fields in rows]
    integers = np.array([[max(int(text or 0), 0) for text in fields[1:14]] for fields in rows])
    logarithms = np.log1p(integers)
    mean, std = logarithms[:num_train].mean(0), logarithms[:num_train].std(0)
    np.testing.assert_allclose(log.dense, (logarithms - mean) / std, atol=1e-5)
    for column in range(len(CATEGORICAL)):
        texts = [fields[14 + column] for fields in rows]
        counts = Counter(text for text in texts[:num_train] if text)
        frequent = sorted(
            (text for text in counts if counts[text] >= 5), key=lambda text: (-counts[text], text)
        )
        ids = {text: FIRST_ID + place for place, text in enumerate(frequent)} | {"": NULL_ID}
        assert log.ids[:, column].tolist() == [ids.get(text, OOV_ID) for text in texts]
    last = {fields[14]: place for place, fields in enumerate(rows)}
    assert dict(zip(log.users.texts, log.users.latest().tolist(), strict=True)) == last


def test_an_extended_encoding_keeps_its_ids(raw: Path) -> None:
    first = fit([file for day in read_days(raw, DAYS[:1], 1) for file in day], None)
    second = fit([file for day in read_days(raw, DAYS[1:4], 1) for file in day], first)
    assert second.mean is first.mean
    for before, after in zip(first.vocabularies, second.vocabularies, strict=True):
        assert before.items() <= after.items()
        assert sorted(after.values()) == list(range(FIRST_ID, FIRST_ID + len(after)))
    assert sum(second.cardinalities) > sum(first.cardinalities)


def test_a_day_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="dt=2026-01-01 has no file"):
        read_days(tmp_path, DAYS[:1], 1)


def random_rows(count: int, seed: int = 0) -> Rows:
    rng = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *CARDINALITIES]).cumsum(0)[:-1]
    ids = torch.stack([torch.randint(rows, (count,), generator=rng) for rows in CARDINALITIES], 1) + starts
    labels = (torch.rand(count, generator=rng) < 0.3).float()
    return Rows(labels, torch.randn(count, len(DENSE), generator=rng), ids.int())


def test_the_model_is_that_of_the_project() -> None:
    """With the weights of our model, the plain one returns the same logits."""
    settings = {"architecture": "dlrm", "embedding_dim": 16, "bottom_mlp": [64, 16], "top_mlp": [64, 32]}
    ours: Any = build_model(ModelConfig.model_validate(settings), spec_of(CARDINALITIES))
    plain, rows = DLRM(CARDINALITIES), random_rows(50)
    plain.table = torch.cat([block.detach() for block in ours.embedding.block_rows()])
    plain.dense = [*ours.bottom.parameters(), *ours.top.parameters(), *ours.logit.parameters()]
    starts = torch.tensor([0, *CARDINALITIES]).cumsum(0)[:-1]
    with torch.no_grad():
        expected = ours(rows.dense, rows.ids.long() - starts)
    torch.testing.assert_close(Trainer(rows, CARDINALITIES, 2).predict(plain, slice(0, 50)), expected)


@pytest.mark.parametrize("kind", [DLRM, LogisticRegression])
@pytest.mark.parametrize("large", [10_000, 20])
def test_a_step_is_that_of_the_optimizers(kind: Any, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large and small tables are updated alike: by row-wise Adagrad, and other weights by torch's Adam."""
    monkeypatch.setattr("benchmarks.peers.plain_model._SMALL_TABLE_ROWS", large)
    torch.manual_seed(0)
    rows, count = random_rows(BATCH), BATCH
    model = kind(CARDINALITIES)
    table = model.table.clone().requires_grad_()
    dense = [weight.detach().clone().requires_grad_() for weight in model.dense]
    twin = kind(CARDINALITIES)
    twin.table, twin.dense = table, dense
    state = OptimizerState.new(model)
    Trainer(rows, CARDINALITIES, 2).train(model, state, slice(0, count))

    logits = twin.logits(rows.dense, torch.nn.functional.embedding(rows.ids, table))
    torch.nn.functional.binary_cross_entropy_with_logits(logits, rows.labels).backward()
    assert table.grad is not None
    accumulator = table.grad.square().mean(1)
    expected = table - 0.15 * table.grad / (accumulator.sqrt() + 1e-8).unsqueeze(1)
    torch.testing.assert_close(state.accumulator, accumulator, rtol=1e-3, atol=1e-12)
    torch.testing.assert_close(model.table, expected, rtol=1e-3, atol=1e-3)
    torch.optim.Adam(dense, lr=3e-3).step()
    for mine, theirs in zip(model.dense, dense, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_the_schedule_is_that_of_the_project() -> None:
    for steps in (1, 7, 176):
        for step in range(steps):
            assert rate_factor(step, steps) == pytest.approx(learning_rate_factor(step, steps, Train()))


def test_training_separates_clicks_and_can_continue() -> None:
    torch.manual_seed(0)
    rows = random_rows(3 * BATCH)
    rows.labels.copy_((rows.ids[:, 0] % 2).float())
    trainer, model = Trainer(rows, CARDINALITIES, 2), DLRM(CARDINALITIES)
    state = OptimizerState.new(model)
    for _ in range(3):
        trainer.train(model, state, slice(0, 3 * BATCH))
    assert state.steps == 9
    assert auc(rows.labels.numpy(), trainer.predict(model, slice(0, 3 * BATCH)).numpy()) > 0.9


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_lists_are_those_of_joined_rows(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.plain_lists._FEW_VALUES_SHARE", share)
    torch.manual_seed(0)
    model, drawn = DLRM(CARDINALITIES), random_rows(61)
    model.table *= 5
    users, items = Side(drawn.dense[:35], drawn.ids[:35]), Side(drawn.dense[35:60], drawn.ids[35:60])
    context = Side(drawn.dense[60:], drawn.ids[60:])
    scores, best = best_items(model, users, items, context, 10, 2)
    joined_dense, joined_ids = (
        getattr(users, name).unsqueeze(1).repeat(1, 25, 1) for name in ("dense", "ids")
    )
    joined_dense[:, :, ITEM_DENSE], joined_ids[:, :, ITEM_COLUMNS] = (
        items.dense[:, ITEM_DENSE],
        items.ids[:, ITEM_COLUMNS],
    )
    joined_dense[:, :, CONTEXT_DENSE] = context.dense[:, CONTEXT_DENSE]
    joined_ids[:, :, CONTEXT_COLUMNS] = context.ids[:, CONTEXT_COLUMNS]
    with torch.no_grad():
        vectors = torch.nn.functional.embedding(joined_ids.flatten(0, 1), model.table)
        expected = model.logits(joined_dense.flatten(0, 1), vectors).view(35, 25).sigmoid()
    top = expected.topk(10)
    torch.testing.assert_close(scores, top.values, rtol=1e-4, atol=1e-6)
    assert torch.equal(best, top.indices)


def test_auc_is_that_of_the_project() -> None:
    rng = np.random.default_rng(0)
    labels, scores = (rng.random(500) < 0.3).astype(np.float32), rng.integers(20, size=500).astype(np.float32)
    assert auc(labels, scores) == pytest.approx(metrics.auc(labels, scores))


def test_a_fresh_and_a_warm_run(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The window has eight days, and the log has nine. So the warm run is of the same date.
    command = ["--raw", str(raw), "--run-date", DAYS[7], "--out", str(tmp_path)]
    plain_run.main(command)
    fresh = json.loads(capsys.readouterr().out)
    plain_run.main([*command, "--warm"])
    warm = json.loads(capsys.readouterr().out)
    assert gc.isenabled()  # the process of these tests looks for garbage as before
    assert (fresh["rows"], fresh["dropped"]) == (8 * 2 * 60, 8 * 2 * 5)
    assert (fresh["users"], fresh["items"]) == (12, 20)
    assert warm["rows"] == fresh["rows"]
    assert warm["auc"] != fresh["auc"]
    assert 0 < fresh["hr10"] <= 1
    lists = pq.read_table(tmp_path / f"recommendations-{DAYS[7]}.parquet")
    assert lists["position"].to_pylist() == [*range(1, 11)] * 12
    of_users = lists.group_by("user_id").aggregate([("item_id", "count_distinct")])
    assert set(of_users["item_id_count_distinct"].to_pylist()) == {10}
    clicked = {(fields[14], fields[15]) for fields in good_rows(raw, DAYS[8]) if fields[0] == "1"}
    listed = set(zip(lists["user_id"].to_pylist(), lists["item_id"].to_pylist(), strict=True))
    users = {user for user, _ in clicked}
    assert warm["hr10"] == pytest.approx(len({user for user, _ in clicked & listed}) / len(users))
