"""Mult-VAE against NumPy: logits, the loss of a step, annealing, ranks; and what its examples contain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.types import ModelConfig, Reading, Train
from storage.feature_spec import NUM_RESERVED_IDS, PAD_ID
from storage.paths import LakePaths
from tests.training.architectures import small_spec, variant
from tests.training.feature_rows import Rows, random_rows
from tests.training.feature_tables import make_config, publish_all, write_file
from tests.training.ranks_in_threads import on_ranks
from tests.training.sequence_models import ITEMS, PLACES, PLAIN, config, inputs_of, randomised
from training.architectures.mult_vae import MultVAE, annealed
from training.collectives import ALONE, Collectives
from training.data.batch import Batch, CatalogueItems
from training.data.item_catalogue import read_catalogue
from training.data.item_comparison import ItemComparison
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, shards_of_rank
from training.loop.forward import Forward
from training.loop.run import train_in_process
from training.loop.train_step import Trainer
from training.loop.training_plan import make_plan
from training.models import build_model
from training.models.sequence import SequenceNoise
from training.settings import check_loss

State = dict[str, NDArray]
SHARDS = 4
KEYED = replace(PLAIN, key_columns=("row_id", "user_key", "item_key"))


def state_of(model: torch.nn.Module) -> State:
    return {key: value.detach().numpy().astype(np.float64) for key, value in model.state_dict().items()}


def latent(state: State, x: NDArray) -> tuple[NDArray, NDArray]:
    """μ and log σ² for the scaled bag x (ITEMS,): the encoder's layers [ITEMS → 8 → 6 → 2 · 5]."""
    h = np.tanh(x @ state["embedding.weight"][ITEMS:] + state["input_bias"])
    h = np.tanh(state["encoder.0.weight"] @ h + state["encoder.0.bias"])
    outputs = state["posterior.weight"] @ h + state["posterior.bias"]
    return outputs[:5], outputs[5:]


def logits_of_latent(state: State, z: NDArray) -> NDArray:
    """The decoder's layers [5 → 6 → 8 → ITEMS]: the logits of all items."""
    for layer in (0, 2):
        z = np.tanh(state[f"decoder.{layer}.weight"] @ z + state[f"decoder.{layer}.bias"])
    return state["embedding.weight"][:ITEMS] @ z + state["item_bias.weight"][:ITEMS, 0]


def unit_bag(history: list[int]) -> NDArray:
    """x / ‖x‖₂ of the distinct items of a history."""
    x = np.zeros(ITEMS)
    x[[item for item in history if item != PAD_ID]] = 1
    return x / max(np.linalg.norm(x), 1e-12)


def test_logits_equal_the_papers_equations_with_the_mean_of_the_latent_variables() -> None:
    model = randomised("mult_vae", PLAIN)
    state = state_of(model)
    dense, categorical = inputs_of(PLAIN, 25, seed=1)
    categorical[:5, 2] = categorical[:5, 1]  # an item twice in a history counts once
    expected = []
    for item, *history in categorical.tolist():
        mean, _ = latent(state, unit_bag(history))
        expected.append(logits_of_latent(state, mean)[item])
    with torch.no_grad():
        logits = model(dense, categorical)
    assert np.std(expected) > 0.1
    assert any(not history.any() for history in categorical[:, 1:])  # one user has no history
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_the_order_of_a_history_does_not_matter() -> None:
    model = randomised("mult_vae", PLAIN)
    dense, categorical = inputs_of(PLAIN, 25, seed=1)
    reversed_ = categorical.clone()
    for row in range(25):
        length = int((categorical[row, 1:] != PAD_ID).sum())
        reversed_[row, 1 : 1 + length] = categorical[row, 1 : 1 + length].flip(0)
    with torch.no_grad():
        torch.testing.assert_close(model(dense, reversed_), model(dense, categorical))


def compared_items() -> CatalogueItems:
    """Two days: the first has all items but two, the second has the items 3 to 8."""
    ids = [*range(2, ITEMS - 1), *range(3, 9)]
    categorical = torch.zeros(len(ids), 1 + PLACES, dtype=torch.int32)
    categorical[:, 0] = torch.tensor(ids)
    starts = [0, ITEMS - 3, len(ids)]
    return CatalogueItems(torch.zeros(len(ids), 0), categorical, starts, torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("history_weight", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("progress", [0.0, 0.2, 1.0])
def test_the_loss_of_a_step_equals_the_papers_equation_6(history_weight: float, progress: float) -> None:
    """With the masks and the noise that the layers drew."""
    rows = 8
    model = randomised(
        "mult_vae", PLAIN, dropout=0.4, beta=0.3, anneal_share=0.5, history_weight=history_weight
    ).train()
    state, items = state_of(model), compared_items()
    _, categorical = inputs_of(PLAIN, rows, seed=3)
    categorical[:, 0] = torch.tensor([3, 4, 5, 6, 7, 8, 3, 4])
    days = [0, 1, 0, 1, 0, 1, 0, 0]
    own = torch.tensor(
        [
            item - 2 if day == 0 else ITEMS - 3 + item - 3
            for item, day in zip(categorical[:, 0].tolist(), days, strict=True)
        ]
    )
    weights = torch.tensor([1.0] * 7 + [0.0])
    batch = Batch(torch.zeros(rows, 0), categorical, weights, weights, 5.0, items=replace(items, own=own))
    for layer in (model.dropout, model.noise):
        layer.draw_mask("1/2", range(2), [3, 5])
    every_row = torch.arange(rows)
    # The dropout applies to the items in ascending order of their ids.
    factors = model.dropout(torch.ones(rows, PLACES, 1), every_row)[:, :, 0].numpy()
    noise = model.noise(torch.zeros(rows, 5), every_row).numpy()
    train = Train(loss="full_softmax")
    actual = Forward(model, train).backward(batch, progress=progress)

    total = 0.0
    for row in range(rows):
        item, *history = categorical[row].tolist()
        x = unit_bag(history)
        ascending = np.array(sorted(history))
        for place, id_ in enumerate(ascending):
            is_first = id_ not in ascending[:place]
            x[id_] *= factors[row, place] if is_first else 1
        mean, log_variance = latent(state, x)
        z = mean + np.exp(log_variance / 2) * noise[row]
        of_day = np.arange(2, ITEMS - 1) if days[row] == 0 else np.arange(3, 9)
        logits = logits_of_latent(state, z)[of_day]
        log_pi = dict(zip(of_day.tolist(), logits - np.log(np.exp(logits).sum()), strict=True))
        y = {id_: history_weight for id_ in history if id_ >= NUM_RESERVED_IDS and id_ in log_pi}
        y[item] = 1.0
        divergence = -0.5 * (1 + log_variance - mean**2 - np.exp(log_variance)).sum()
        loss = -sum(weight * log_pi[id_] for id_, weight in y.items())
        total += float(weights[row]) * (loss + 0.3 * min(1, progress / 0.5) * divergence) / 5.0
    assert float(actual) == pytest.approx(total, rel=1e-4)
    assert {round(value, 4) for value in factors.ravel().tolist()} == {0.0, 1.6667}
    assert noise.std() > 0.5


def test_the_weight_of_the_divergence_rises_linearly() -> None:
    assert [annealed(0.2, 0.5, progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.1, 0.2, 0.2]
    assert annealed(0.2, 0.0, 0.0) == 0.2


def test_noise_does_not_depend_on_the_number_of_ranks() -> None:
    """Four shards on one rank get the noise of two shards on each of two ranks."""
    like, first_rows, rows = torch.zeros(7, 3), torch.tensor([0, 2, 4, 5, 6, 9, 10]), [4, 0, 6, 2]
    whole = SequenceNoise()
    whole.draw_mask("key", range(4), rows)
    expected = whole(like, first_rows)
    parts = []
    for shards, own, taken in ((range(2), rows[:2], slice(0, 2)), (range(2, 4), rows[2:], slice(2, 7))):
        noise = SequenceNoise()
        noise.draw_mask("key", shards, own)
        parts.append(noise(like[taken], first_rows[taken] - (0 if shards.start == 0 else 4)))
    assert torch.equal(torch.cat(parts), expected)
    assert 0.5 < float(expected.std()) < 1.5
    whole.draw_mask("next key", range(4), rows)
    assert not torch.equal(whole(like, first_rows), expected)
    assert not whole.eval()(like, first_rows).any()


def test_drawn_negatives_of_a_row_share_its_noise_and_one_penalty() -> None:
    spec = small_spec("mult_vae")
    model: Any = build_model(variant("mult_vae"), spec, 1).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    rng = np.random.default_rng(2)
    width = model.layout.length
    ids = rng.integers(3, 9, (4, 2 + width)).repeat(3, axis=0)
    ids[:, 0] %= 5
    ids[:, 1] = rng.integers(3, 9, 12)  # three items for each history
    batch = Batch(
        torch.zeros(12, len(spec.dense)),
        torch.from_numpy(ids),
        torch.tensor([1.0, 0.0, 0.0] * 4),
        torch.tensor([1.0] * 9 + [0.0] * 3),
        3.0,
        group=3,
        log_draw=torch.zeros(12),
    )
    train = Train(loss="softmax", negatives={})  # type: ignore[arg-type]
    losses = []
    for progress in (0.0, 1.0):
        for layer in (model.dropout, model.noise):
            layer.draw_mask("1/2", range(2), [6, 6])
        losses.append(float(Forward(model, train).backward(batch, progress=progress)))
    for layer in (model.dropout, model.noise):
        layer.draw_mask("1/2", range(2), [6, 6])
    model(batch.dense, batch.categorical)
    penalties = model.take_penalty(1.0).detach().view(4, 3)
    assert torch.equal(penalties[:, 0], penalties[:, 2])
    assert losses[1] - losses[0] == pytest.approx(float(penalties[:3, 0].sum()) / 3, rel=1e-4)
    assert float(penalties.std()) > 0.1


def test_the_random_numbers_of_a_step_depend_on_seed_and_step() -> None:
    """With the rate 0, all steps have the same weights."""
    spec = small_spec("mult_vae")
    rows = random_rows(spec, 32, seed=0)
    ones = torch.ones(32)
    batch = Batch(*rows.tensors(4), torch.from_numpy(rows.labels), ones, 32.0)

    def losses(seed: int) -> list[float]:
        train = Train.model_validate({"num_ranks": 1, "num_shards": SHARDS, "seed": seed})
        model = build_model(variant("mult_vae", multi_hot={"max_length": 4}), spec, 1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
        trainer = Trainer(model.train(), train, ALONE)
        return [float(trainer.step(batch, 0.0)) for _ in range(2)]

    first, second = losses(1)
    assert first != second
    assert losses(1) == [first, second]
    assert losses(2)[0] != first


def group_rows(count: int, seed: int) -> Rows:
    """A user's items are of one half of the items. Half of the rows have such an item, the others any item."""
    rng = np.random.default_rng(seed)
    half = (ITEMS - 3) // 2
    group = rng.integers(0, 2, count)
    labels = rng.integers(0, 2, count)
    histories = [
        (3 + kind * half + rng.integers(0, half, rng.integers(1, PLACES))).tolist() for kind in group
    ]
    items = np.where(
        labels == 1, 3 + group * half + rng.integers(0, half, count), rng.integers(3, ITEMS, count)
    )
    keys = ([f"u{user}" for user in range(count)], [f"i{item}" for item in items])
    no_dense = np.zeros((count, 0), np.float32)
    return Rows(labels.astype(np.float32), no_dense, items[:, None].astype(np.int32), (histories,), keys)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_and_resumption_change_nothing_but_rounding(tmp_path: Path, ranks: int) -> None:
    """With bags, dropout, noise and an annealed penalty, in a training with full_softmax."""
    rows, batch_rows = group_rows(500, seed=1), 64
    write_file(tmp_path / "a.parquet", KEYED, rows)
    files = [DataFile(str(tmp_path / "a.parquet"), 500, dt="2026-01-01")]
    train = Train.model_validate(
        {"num_ranks": 1, "num_shards": SHARDS, "global_batch_size": batch_rows, "loss": "full_softmax"}
    )
    model_config = config("mult_vae", dropout=0.3)
    plan = plan_shards([500], SHARDS, batch_rows)

    def run(collectives: Collectives) -> tuple[list[float], dict[str, torch.Tensor]]:
        shards = shards_of_rank(SHARDS, collectives.rank, collectives.size)
        multi_hot = model_config.multi_hot
        catalogue = read_catalogue(files, [], KEYED, multi_hot, Reading(), collectives, torch.device("cpu"))
        model = build_model(model_config, KEYED, 1)
        trainer = Trainer(
            model.train(), train, collectives, ItemComparison(catalogue, train, KEYED, multi_hot, len(shards))
        )
        loader = Loader(files, plan, shards, KEYED, 3, multi_hot, with_row_keys=True)
        losses = [
            float(trainer.step(batch, 1.0, number / 14)) for number, batch in enumerate(loader.batches(2))
        ]
        return losses, {name: value.detach() for name, value in model.named_parameters()}

    ((alone, weights),) = on_ranks(1, run)
    for losses, of_rank in on_ranks(ranks, run):
        np.testing.assert_allclose(losses, alone, rtol=2e-4)
        for name, value in weights.items():
            torch.testing.assert_close(of_rank[name], value, rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.slow
def test_it_learns_groups_of_items_and_gets_the_progress_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    days = {"train": {"2026-01-02": group_rows(6_000, 1)}, "validation": {"2026-01-03": group_rows(800, 2)}}
    lake = LakePaths(str(tmp_path))
    dataset = publish_all(lake, "2026-01-04", KEYED, days)
    train = {
        "num_ranks": 1,
        "num_shards": SHARDS,
        "device": "cpu",
        "global_batch_size": 256,
        "epochs": 3,
        "loss": "full_softmax",
        "learning_rate": 0.01,
        "embedding_learning_rate": 0.01,
        "embeddings": {"optimizer": "lazy_adam"},
    }
    calls: list[float] = []
    original = MultVAE.take_penalty

    def noting(model: MultVAE, progress: float) -> torch.Tensor:
        calls.append(progress)
        return original(model, progress)

    monkeypatch.setattr(MultVAE, "take_penalty", noting)
    sections = {"model": config("mult_vae").model_dump(), "train": train}
    sections["keys"] = {"user": "I0", "item": "label"}
    description = train_in_process(make_plan(make_config(lake, **sections), lake, dataset))
    # A shown item of the other half of the items is a negative; one of the user's half looks like a positive.
    assert description["metrics"]["validation"]["auc"] > 0.7
    np.testing.assert_allclose(calls, np.arange(len(calls)) / len(calls))


def test_the_item_of_a_row_does_not_influence_the_vector_of_its_user() -> None:
    model = randomised("mult_vae", PLAIN, dropout=0.3).train()
    dense, categorical = inputs_of(PLAIN, 12, seed=1)
    changed = categorical.clone()
    changed[:, 0] = (categorical[:, 0] + 1) % ITEMS
    vectors = []
    for ids in (categorical, changed):
        for layer in (model.dropout, model.noise):
            layer.draw_mask("1/2", range(2), [5, 7])
        vectors.append(model.user_vectors(dense, ids))
    assert torch.equal(*vectors)
    bags = model.bags(changed, changed)
    assert torch.equal(bags.weights, model.bags(categorical, categorical).weights)


def test_a_loss_of_one_item_per_row_is_refused_unless_the_history_has_no_weight() -> None:
    model = ModelConfig.model_validate({"architecture": "mult_vae"})
    check_loss(Train(loss="full_softmax"), model)
    for loss in ("bce", "in_batch_softmax"):
        with pytest.raises(ConfigError, match=rf"history_weight=1 .* train.loss={loss} compares only"):
            check_loss(Train(loss=loss), model)  # type: ignore[arg-type]
        check_loss(Train(loss=loss), variant("mult_vae"))  # type: ignore[arg-type]
