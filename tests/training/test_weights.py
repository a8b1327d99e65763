"""Weights of rows: in batches, in every loss by NumPy, over any number of ranks; weights of 1 change nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from conf.errors import DataError
from conf.types import ModelConfig, MultiHot, Reading, Train, TrainNegatives
from storage.feature_spec import FeatureSpec
from storage.paths import LakePaths
from tests.training.choices import SPEC, Choices, choices, write_days
from tests.training.ranks_in_threads import on_ranks
from tests.training.test_overlap import run, trainer_of
from tests.training.test_spread_tables import share
from training.collectives import ALONE, Collectives
from training.data import pool_writer
from training.data.batch import Batch, Vectors
from training.data.item_catalogue import ItemCatalogue, read_catalogue
from training.data.item_comparison import ItemComparison
from training.data.loader import Loader
from training.data.negative_sampler import NegativeSampler
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank
from training.loop.forward import mean_penalty, read_loss
from training.loop.run import train_in_process
from training.loop.train_step import Trainer
from training.loop.training_plan import make_table_plan
from training.models import build_model

SHARDS, BATCH, DRAWS = 4, 64, 3
MULTI_HOT = MultiHot(max_length=4)
CPU = torch.device("cpu")
WEIGHTED = replace(SPEC, weight="weight")
VALUES = np.array([0.1, 0.5, 3.0], np.float32)
DLRM = {
    "architecture": "dlrm",
    "embedding_dim": 8,
    "bottom_mlp": [8, 8],
    "top_mlp": [16],
    "multi_hot": {"max_length": 4},
}
TWO_TOWER = {
    "architecture": "two_tower",
    "embedding_dim": 8,
    "user_tower": [16],
    "item_tower": [12],
    "output_dim": 6,
    "dropout": 0.0,
    "multi_hot": {"max_length": 4},
}


def write_weighted(folder: Path, days: list[Choices], values: NDArray[np.float32]) -> list[DataFile]:
    """The files of `write_days` with a column of weights, one of `values` for each row."""
    files = write_days(folder, days)
    for number, file in enumerate(files):
        table = pq.read_table(file.path)
        weights = np.random.default_rng(number).choice(values, len(table))
        place = table.column_names.index("label") + 1
        pq.write_table(table.add_column(place, "weight", pa.array(weights, pa.float32())), file.path)
    return files


@pytest.fixture(scope="module")
def days() -> list[Choices]:
    return [choices(500, seed=number, day=number) for number in range(2)]


@pytest.fixture(scope="module")
def files(days: list[Choices], tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    return write_weighted(tmp_path_factory.mktemp("weighted"), days, VALUES)


@pytest.fixture(scope="module")
def equal_files(days: list[Choices], tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    """The same rows, each with the weight 1."""
    return write_weighted(tmp_path_factory.mktemp("equal"), days, np.ones(1, np.float32))


def columns_of(files: list[DataFile]) -> pa.Table:
    return pa.concat_tables([pq.read_table(file.path) for file in files])


def loader_of(
    files: list[DataFile],
    spec: FeatureSpec = WEIGHTED,
    rank: int = 0,
    ranks: int = 1,
    *,
    keys: bool = False,
    pools: Literal["host", "device"] = "host",
) -> Loader:
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    shards = shards_of_rank(SHARDS, rank, ranks)
    reading = Reading(pool_rows=1, pools=pools)
    return Loader(files, plan, shards, spec, 3, MULTI_HOT, reading=reading, with_row_keys=keys)


def catalogue_of(
    files: list[DataFile], spec: FeatureSpec = WEIGHTED, collectives: Collectives = ALONE
) -> ItemCatalogue:
    return read_catalogue(files, [], spec, MULTI_HOT, Reading(), collectives, CPU)


def sampler_of(catalogue: ItemCatalogue, spec: FeatureSpec = WEIGHTED, ranks: int = 1) -> NegativeSampler:
    settings = TrainNegatives(per_positive=DRAWS)
    return NegativeSampler(catalogue, settings, 7, spec, MULTI_HOT, SHARDS // ranks)


def settings(loss: str = "bce", **changed: Any) -> Train:
    base = {"num_ranks": 1, "num_shards": SHARDS, "global_batch_size": BATCH, "loss": loss}
    return Train.model_validate({**base, **changed})


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("written_by", ["numpy", "compiled", "device"])
def test_batches_have_the_weight_of_each_row_and_zero_for_padding(
    files: list[DataFile], keys: bool, written_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: Literal["host", "device"] = "device" if written_by == "device" else "host"
    if written_by == "numpy":
        monkeypatch.setattr(pool_writer, "library", lambda: None)
    table = columns_of(files)
    prices = [tuple(row.values()) for row in table.select(["hour", "price"]).to_pylist()]
    expected = dict(zip(prices, table["weight"].to_pylist(), strict=True))
    seen = 0
    on_host = loader_of(files, keys=keys).batches()
    for batch, expected_batch in zip(
        loader_of(files, keys=keys, pools=pools).batches(), on_host, strict=True
    ):
        assert batch.weighted
        if keys:
            assert torch.equal(cast(Any, batch.row_keys), cast(Any, expected_batch.row_keys))
        assert batch.dense.shape == (BATCH, 3)
        assert batch.dense.is_contiguous()
        real = batch.weights > 0
        assert int(real.sum()) == batch.global_weight
        assert not batch.dense[~real].any()
        assert (batch.row_keys is not None) == keys
        for row, weight in zip(batch.dense[real].tolist(), batch.weights[real].tolist(), strict=True):
            assert weight == expected[row[2], row[1]]
        seen += int(real.sum())
    assert seen == len(table)
    assert set(expected.values()) == set(VALUES.tolist())


def test_a_file_without_the_weights_of_its_spec_is_refused(days: list[Choices], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lacks the columns \['weight'\]"):
        next(iter(loader_of(write_days(tmp_path, days)).batches()))


def logits_of(model: torch.nn.Module, batch: Batch) -> NDArray[np.float64]:
    with torch.no_grad():
        return model(batch.dense, batch.categorical).double().numpy()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_loss_of_a_step_is_the_weighted_mean_over_all_ranks(files: list[DataFile], ranks: int) -> None:
    """Σ w · loss / Σ w over the rows of the global batch (NumPy), and all ranks get the same model."""

    def run(collectives: Collectives) -> tuple[list[tuple[float, float, float, float]], dict[str, Any]]:
        model = build_model(ModelConfig.model_validate(DLRM), WEIGHTED, 1).train()
        trainer = Trainer(model, settings(num_ranks=ranks), collectives)
        sums = []
        for batch in loader_of(files, WEIGHTED, collectives.rank, ranks).batches():
            z, y, w = logits_of(model, batch), batch.labels.numpy(), batch.weights.double().numpy()
            losses = np.logaddexp(0, z) - y * z
            sums.append((float(trainer.step(batch, 1.0)), w @ losses, w.sum(), len(w)))
        return sums, {name: value.clone() for name, value in model.state_dict().items()}

    results = on_ranks(ranks, run)
    steps = list(zip(*(sums for sums, _ in results), strict=True))
    assert len(steps) == len(columns_of(files)) // BATCH + 1
    for step in steps:
        loss, total, weight, rows = (np.array(part) for part in zip(*step, strict=True))
        np.testing.assert_allclose(loss, total.sum() / weight.sum(), rtol=2e-5)
        assert abs(weight.sum() - rows.sum()) > 1  # so a mean over rows would differ


def test_requests_that_start_early_change_no_bit_of_weighted_steps() -> None:
    """The sum of the weights of the next batch is computed while rows of tables are on their way."""

    def body(collectives: Collectives, *, ahead: bool) -> list[float]:
        batches = []
        for seed in range(4):
            batch = share(seed, collectives)  # its last rows are padding, of weight zero
            factors = 0.1 + torch.arange(len(batch.weights)) % 3
            batches.append(replace(batch, weights=batch.weights * factors, weighted=True))
        trainer = trainer_of(collectives, "row_wise", "row_wise_adagrad", "dlrm")
        assert trainer.looks_ahead == (collectives.size > 1)
        return run(trainer, batches, ahead=ahead)

    early, late = (on_ranks(2, partial(body, ahead=ahead)) for ahead in (True, False))
    assert early == late
    assert early[0] == early[1]
    assert len(set(early[0])) == 4


@pytest.mark.parametrize("loss", ["bce", "bpr", "softmax", "drawn bce", "in_batch_softmax", "full_softmax"])
def test_weights_of_1_train_the_model_that_rows_without_weights_train(
    files: list[DataFile], equal_files: list[DataFile], loss: str
) -> None:
    """Equal to the bit; with other weights, the model differs."""

    def trained(source: list[DataFile], spec: FeatureSpec) -> tuple[list[float], dict[str, torch.Tensor]]:
        name = loss.removeprefix("drawn ")
        negatives = {"negatives": {"per_positive": DRAWS}} if loss in ("bpr", "softmax", "drawn bce") else {}
        train = settings(name, **negatives)
        rows_of_step: Any = None
        if negatives:
            rows_of_step = sampler_of(catalogue_of(source, spec), spec)
        elif train.compares_vectors:
            rows_of_step = ItemComparison(catalogue_of(source, spec), train, spec, MULTI_HOT, SHARDS)
        architecture = TWO_TOWER if train.compares_vectors else DLRM
        model = build_model(ModelConfig.model_validate(architecture), spec, 1).train()
        trainer = Trainer(model, train, ALONE, rows_of_step)
        loader = loader_of(source, spec, keys=rows_of_step is not None)
        losses = [float(trainer.step(batch, 1.0)) for batch in loader.batches()]
        return losses, {name: value.clone() for name, value in model.state_dict().items()}

    losses, state = trained(equal_files, SPEC)
    same_losses, same_state = trained(equal_files, WEIGHTED)
    assert same_losses == losses
    for name, value in state.items():
        assert torch.equal(same_state[name], value), name
    other_losses, other_state = trained(files, WEIGHTED)
    assert other_losses != losses
    assert any(not torch.allclose(other_state[name], value, rtol=1e-3) for name, value in state.items())


@pytest.mark.parametrize("ranks", [1, 2])
def test_drawn_negatives_have_the_weight_1_and_positive_rows_their_own(
    files: list[DataFile], ranks: int
) -> None:
    table = columns_of(files)
    positive = table["label"].to_numpy() == 1
    expected = table["weight"].to_numpy()[positive]

    def run(collectives: Collectives) -> list[Batch]:
        sampler = sampler_of(catalogue_of(files, collectives=collectives), ranks=ranks)
        loader = loader_of(files, WEIGHTED, collectives.rank, ranks, keys=True)
        return [sampler.expand(batch) for batch in loader.batches()]

    of_ranks = on_ranks(ranks, run)
    found: list[float] = []
    for batch in (batch for batches in of_ranks for batch in batches):
        assert not batch.weighted
        groups = batch.weights.view(-1, 1 + DRAWS)
        found += groups[:, 0][groups[:, 0] > 0].tolist()
        assert set(groups[:, 1:].flatten().tolist()) <= {0.0, 1.0}
    assert sorted(found) == sorted(expected.tolist())
    for batches in of_ranks:
        assert sum(batch.global_weight for batch in batches) == pytest.approx(float(expected.sum()), rel=1e-6)
        drawn = sum(batch.drawn_weight or 0 for batch in batches)
        assert drawn == pytest.approx(DRAWS * int(positive.sum()), rel=1e-9)
    assert len({batch.global_weight for batches in of_ranks for batch in batches[:1]}) == 1


def test_a_batch_without_a_positive_row_has_the_loss_zero(files: list[DataFile]) -> None:
    batch = next(iter(loader_of(files, keys=True).batches()))
    empty = sampler_of(catalogue_of(files)).expand(replace(batch, labels=batch.labels * 0))
    assert empty.weights.tolist() == [0] * (1 + DRAWS)
    assert float(read_loss("bce")(torch.ones(1 + DRAWS), empty)) == 0


def test_losses_of_groups_are_weighted_means_in_numpy() -> None:
    rng = np.random.default_rng(3)
    logits, weights = rng.normal(size=(5, 4)), np.array([0.1, 2.0, 0.5, 1.0, 3.0])
    accepted = rng.random((5, 3)) < 0.7
    shares = rng.random((5, 4)) + 0.1
    row_weights = np.column_stack([weights, accepted]).astype(np.float32)
    labels = np.column_stack([np.ones(5), np.zeros((5, 3))]).astype(np.float32)
    none = torch.zeros(20, 0)
    batch = Batch(
        none,
        none,
        torch.from_numpy(labels).flatten(),
        torch.from_numpy(row_weights).flatten(),
        global_weight=6.6,  # the expected sum of the weights of positive rows
        group=4,
        log_draw=torch.from_numpy(np.log(shares)).flatten(),
        drawn_weight=15.0,
    )
    values = torch.from_numpy(logits).flatten()
    bce = row_weights * (np.logaddexp(0, logits) - labels * logits)
    assert float(read_loss("bce")(values, batch)) == pytest.approx(bce.sum() / (6.6 + 15), rel=1e-6)
    pairs = np.logaddexp(0, logits[:, 1:] - logits[:, :1]) * accepted
    bpr = (pairs.sum(1) * weights).sum() / (6.6 * 3)
    assert float(read_loss("bpr")(values, batch)) == pytest.approx(bpr, rel=1e-6)
    terms = np.exp(logits) / shares * np.column_stack([np.ones(5), accepted])
    softmax = (np.log(terms.sum(1) / terms[:, 0]) * weights).sum() / 6.6
    assert float(read_loss("softmax")(values, batch)) == pytest.approx(softmax, rel=1e-6)
    penalties = rng.random(20)
    expected = (penalties.reshape(5, 4)[:, 0] * weights).sum() / 6.6
    assert float(mean_penalty(torch.from_numpy(penalties), batch)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", ["full_softmax", "in_batch_softmax"])
def test_losses_over_item_vectors_are_weighted_sums_in_numpy(files: list[DataFile], loss: str) -> None:
    """Each row of a real batch counts with its weight, divided by the expected weight of positive rows."""
    table = columns_of(files)
    positive = table["label"].to_numpy() == 1
    per_row = float(table["weight"].to_numpy()[positive].sum(dtype=np.float64)) / len(table)
    comparison = ItemComparison(catalogue_of(files), settings(loss), WEIGHTED, MULTI_HOT, SHARDS)
    given = next(iter(loader_of(files, keys=True).batches()))
    batch = comparison.expand(given)
    assert batch.weights.tolist() == given.weights[given.labels == 1].tolist()
    assert float(batch.global_weight) == pytest.approx(BATCH * per_row, rel=1e-9)
    items: Any = batch.items
    rng = np.random.default_rng(5)
    users, vectors = rng.normal(size=(len(batch.labels), 4)), rng.normal(size=(len(items.dense), 4))
    total = 0.0
    for row, weight in enumerate(batch.weights.double().tolist()):
        if loss == "full_softmax":
            own = int(items.own[row])
            day = int(np.searchsorted(items.starts, own, side="right")) - 1
            first = items.starts[day]
            logits, place = vectors[first : items.starts[day + 1]] @ users[row], own - first
        else:
            logits, place = vectors @ users[row] - items.log_shares.double().numpy(), row
            other = (items.keys == items.keys[row]).numpy()
            other[row] = False
            logits = np.where(other, -np.inf, logits)
        total += weight * (np.log(np.exp(logits).sum()) - logits[place])
    actual = read_loss(loss)(Vectors(torch.from_numpy(users), torch.from_numpy(vectors), items, ALONE), batch)
    assert float(actual) == pytest.approx(total / (BATCH * per_row), rel=1e-6)


def test_a_training_of_weighted_rows_is_measured_without_weights(tmp_path: Path) -> None:
    """Half of the rows are clicks with the weight 3, the others are no clicks with the weight 1.

    So the model learns the probability 3 / 4, and the mean label that the measures see is 1 / 2.
    """
    rng = np.random.default_rng(1)
    labels = (np.arange(4000) % 2).astype(np.float32)
    x = rng.normal(size=4000).astype(np.float32)
    columns = {"row_id": np.arange(4000), "label": labels, "weight": 1 + 2 * labels, "I0": x}
    spec = FeatureSpec(
        (replace(SPEC.features[0], name="I0", scope="context"),), ("row_id",), "w1", weight="weight"
    )
    table = pa.table({name: pa.array(columns[name]) for name in spec.table_columns})
    train = Train(
        num_ranks=1, num_shards=1, global_batch_size=200, epochs=20, learning_rate=0.05, keep="last"
    )
    model = ModelConfig(architecture="logistic_regression")
    plan = make_table_plan(
        model, train, spec, {"train": table, "validation": table}, LakePaths(str(tmp_path))
    )
    measures = train_in_process(plan)["metrics"]["validation"]
    p = 0.75
    unweighted = -0.5 * (np.log(p) + np.log(1 - p))
    weighted = -(3 * np.log(p) + np.log(1 - p)) / 4
    assert measures["log_loss"] == pytest.approx(unweighted, abs=0.01)
    assert abs(measures["log_loss"] - weighted) > 0.1
    assert measures["rows"] == 4000
