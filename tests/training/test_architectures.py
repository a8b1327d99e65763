"""Every architecture trains, resumes, is saved and loaded, and is equal on any number of ranks."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metrics import auc
from storage.feature_spec import PAD_ID, FeatureSpec
from storage.paths import LakePaths
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.feature_rows import Rows, make_spec, random_rows, segment_rows, wish_rows
from tests.training.feature_tables import make_config, publish_all, write_file
from tests.training.ranks_in_threads import on_ranks
from training.checkpoints import load_model, open_trained, save_trained
from training.collectives import Collectives, LocalCollectives
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, shards_of_rank
from training.embeddings.table import tables_of
from training.loop import training_loop
from training.loop.run import train_in_process, warm_start
from training.loop.train_step import Trainer
from training.loop.training_plan import TrainPlan, make_plan
from training.models import build_model, complete

pytestmark = pytest.mark.slow

RUN_DATE = "2026-01-04"
LISTS = {"max_length": 4, "pooling": "sum"}
DEEP = sorted(set(VARIANTS) - {"logistic_regression"})


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def plan_of(lake: LakePaths, name: str, spec: FeatureSpec, days: dict[str, Rows], **train: Any) -> TrainPlan:
    splits = {
        split: {dt: days[split]}
        for split, dt in [("train", "2026-01-02"), ("validation", "2026-01-03"), ("test", RUN_DATE)]
    }
    dataset = publish_all(lake, RUN_DATE, spec, splits, file_rows=3_000)
    model = variant(name, multi_hot=LISTS).model_dump()
    train = {"num_ranks": 1, "num_shards": 4, "device": "cpu", **train}
    return make_plan(make_config(lake, model=model, train=train), lake, dataset)


def random_plan(lake: LakePaths, name: str, rows: int = 600, **train: Any) -> TrainPlan:
    spec = small_spec(name)
    splits = ["train", "validation", "test"]
    days = {split: random_rows(spec, rows, seed) for seed, split in enumerate(splits)}
    return plan_of(lake, name, spec, days, global_batch_size=64, log_every_steps=1, **train)


def auc_of(name: str, rows_of: Any, folder: Path) -> float:
    """The AUC of a test day after a training on rows whose clicks depend on an interaction."""
    spec, train = rows_of(30_000, seed=1)
    days = {"train": train, "validation": rows_of(5_000, seed=2)[1], "test": rows_of(5_000, seed=3)[1]}
    settings = {"global_batch_size": 512, "epochs": 4, "baselines": []}
    plan = plan_of(LakePaths(str(folder)), name, spec, days, **settings)
    return float(train_in_process(plan)["metrics"]["test"]["auc"])


@pytest.mark.parametrize("rows_of", [segment_rows, wish_rows])
@pytest.mark.parametrize("name", DEEP)
def test_it_learns_interactions_that_no_linear_model_can(tmp_path: Path, name: str, rows_of: Any) -> None:
    assert auc_of(name, rows_of, tmp_path) > 0.78  # the true probabilities reach 0.80 and 0.84


@pytest.mark.parametrize("rows_of", [segment_rows, wish_rows])
def test_a_linear_model_does_not_learn_these_interactions(tmp_path: Path, rows_of: Any) -> None:
    assert auc_of("logistic_regression", rows_of, tmp_path) < 0.6


@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
def test_a_saved_model_scores_as_it_was_measured(tmp_path: Path, name: str) -> None:
    plan = random_plan(LakePaths(str(tmp_path)), name)
    description = train_in_process(plan)
    loaded = load_model(plan.model_path, torch.device("cpu"))
    assert (loaded.spec, loaded.version) == (plan.spec, description["version"])
    assert not loaded.model.training
    assert loaded.multi_hot.max_length == 4
    rows = random_rows(plan.spec, 600, seed=2)
    with torch.no_grad():
        logits = loaded.model(*rows.tensors(4)).numpy()
    # The training measured other batches. Rounding of DIN's attention may change the order of one of 90,000 pairs.
    tolerance = 2e-5 if name.startswith("din") else 1e-6
    assert auc(rows.labels, 1 / (1 + np.exp(-logits))) == pytest.approx(
        description["metrics"]["test"]["auc"], abs=tolerance
    )
    for table in tables_of(loaded.model).values():
        assert not table.block_rows()[-1][PAD_ID].any()  # of the list feature
        assert bool(table.block_rows()[1][1:].all())


@pytest.mark.parametrize("storage, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_tables_of_16_bits_are_saved_as_such_and_score_as_they_were_measured(
    tmp_path: Path, storage: str, dtype: torch.dtype
) -> None:
    plan = random_plan(LakePaths(str(tmp_path)), "dlrm")
    model = complete(variant("dlrm", multi_hot=LISTS, embedding_storage=storage))
    plan = replace(
        plan, model=model, description={**plan.description, "model": model.model_dump(mode="json")}
    )
    description = train_in_process(plan)
    loaded = load_model(plan.model_path, torch.device("cpu"))
    (table,) = tables_of(loaded.model).values()
    assert table.weight.dtype == dtype
    assert bool(table.block_rows()[1][1:].all())
    rows = random_rows(plan.spec, 600, seed=2)
    with torch.no_grad():
        probabilities = torch.sigmoid(loaded.model(*rows.tensors(4))).numpy()
    assert auc(rows.labels, probabilities) == pytest.approx(description["metrics"]["test"]["auc"], abs=1e-6)


class Interrupted(Exception):
    """Stands for a killed process."""


@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
def test_a_resumed_training_ends_in_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = {"epochs": 2, "checkpoint_every_steps": 4}
    undisturbed = random_plan(LakePaths(str(tmp_path / "a")), name, **settings)
    expected = train_in_process(undisturbed)
    plan = random_plan(LakePaths(str(tmp_path / "b")), name, **settings)
    steps = 0

    def counting(*arguments: Any) -> float:
        nonlocal steps
        steps += 1
        if steps > 7:
            raise Interrupted
        return original(*arguments)

    original = training_loop.learning_rate_factor
    monkeypatch.setattr(training_loop, "learning_rate_factor", counting)
    with pytest.raises(Interrupted):
        train_in_process(plan)
    monkeypatch.setattr(training_loop, "learning_rate_factor", original)
    description = train_in_process(plan)
    assert [entry["loss"] for entry in description["history"]] == [
        entry["loss"] for entry in expected["history"]
    ]
    mine, theirs = (
        load_model(trained.model_path, torch.device("cpu")).model for trained in (plan, undisturbed)
    )
    for key, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[key], value), key


@pytest.mark.parametrize(
    "ranks", [2, 3]
)  # 3 do not divide the 4 shards: what an elastic training may be left with
@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
def test_ranks_change_nothing_but_rounding(tmp_path: Path, name: str, ranks: int) -> None:
    spec, rows = small_spec(name), 350
    write_file(tmp_path / "a.parquet", spec, random_rows(spec, rows, seed=0))
    config = complete(variant(name, multi_hot=LISTS))
    # With the default rate of 0.15, steps of SASRec on random labels amplify rounding a thousandfold.
    train = make_train(num_shards=4, global_batch_size=64, embedding_learning_rate=0.05)
    shards = plan_shards([rows], train.num_shards, train.global_batch_size)
    model = build_model(config, spec, 3).train()  # once: threads share torch's generator

    def body(collectives: Collectives) -> tuple[list[float], dict[str, torch.Tensor]]:
        files = [DataFile(str(tmp_path / "a.parquet"), rows)]
        rank_shards = shards_of_rank(train.num_shards, collectives.rank, collectives.size)
        trainer = Trainer(deepcopy(model), train, collectives)
        losses = [
            float(trainer.step(batch, 1.0))
            for batch in Loader(files, shards, rank_shards, spec, 5, config.multi_hot).batches(epochs=2)
        ]
        return losses, {key: value.clone() for key, value in trainer.state().items()}

    losses, alone = body(LocalCollectives())
    first, *others = on_ranks(ranks, body)
    np.testing.assert_allclose(first[0], losses, rtol=1e-4)
    assert all(first[0] == other[0] for other in others)
    for key, value in alone.items():
        assert all(torch.equal(first[1][key], other[1][key]) for other in others), key
        torch.testing.assert_close(first[1][key], value, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_warm_start_keeps_rows_of_a_grown_vocabulary(tmp_path: Path, name: str) -> None:
    config = variant(name, multi_hot=LISTS)
    old_spec, new_spec = make_spec(2, [5], lists=[7]), make_spec(2, [6], "w2", lists=[9])
    parent, child = (
        Trainer(build_model(config, spec, seed), make_train(), LocalCollectives())
        for spec, seed in [(old_spec, 1), (new_spec, 2)]
    )
    by_row = parent.row_state()
    assert {key for key in by_row if key.startswith("model.")} == {
        f"model.{key}" for key in tables_of(parent.model)
    }
    generator = torch.Generator().manual_seed(0)
    for value in parent.state().values():
        if value.dtype == torch.float32:
            value.detach().copy_(torch.rand(value.shape, generator=generator))
    fresh = {key: value.clone() for key, value in child.state().items()}
    save_trained(str(tmp_path), parent, {"feature_spec": old_spec.to_json()}, LocalCollectives())
    warm_start(child, new_spec, *open_trained(str(tmp_path)))
    for key, value in child.state().items():
        old = parent.state()[key]
        if key in by_row:
            assert torch.equal(value[:5], old[:5]), key
            assert torch.equal(value[5:6], fresh[key][5:6]), key
            assert torch.equal(value[6:13], old[5:]), key
            assert torch.equal(value[13:], fresh[key][13:]), key
        else:
            assert torch.equal(value, old), key
    with torch.no_grad():
        inputs = random_rows(old_spec, 20, seed=0).tensors(4)
        assert torch.equal(child.model.eval()(*inputs), parent.model.eval()(*inputs))


def make_train(**settings: Any) -> Any:
    return make_config(LakePaths("unused"), model={"architecture": "dlrm"}, train=settings).train
