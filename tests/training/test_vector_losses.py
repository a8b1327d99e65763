"""The losses over item vectors and their gradients against NumPy, and the models that they can train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from pydantic import ValidationError

from conf.errors import ConfigError
from conf.types import Train
from storage.feature_spec import Feature, FeatureSpec
from storage.paths import LakePaths
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.feature_tables import make_config
from tests.training.ranks_in_threads import on_ranks
from training.collectives import ALONE, Collectives
from training.data.batch import Batch, BatchItems, CatalogueItems, Vectors
from training.loop.forward import read_loss
from training.loop.train_step import Trainer
from training.models import build_model
from training.models.factorization import VectorModel
from training.settings import check_loss

LOSSES = ("full_softmax", "in_batch_softmax")


def cross_entropy(logits: NDArray[np.float64], own: int, kept: NDArray[np.bool_]) -> tuple[float, NDArray]:
    """The loss of one row, and its gradient with respect to the logits, one item at a time."""
    terms = np.array([np.exp(value) if keep else 0.0 for value, keep in zip(logits, kept, strict=True)])
    gradient = terms / terms.sum()
    gradient[own] -= 1
    return float(np.log(terms.sum()) - logits[own]), gradient


def random_vectors(rows: int, items: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(5)
    return tuple(torch.from_numpy(rng.normal(size=(count, 4))).requires_grad_() for count in (rows, items))  # type: ignore[return-value]


def batch_of(weights: torch.Tensor, items: CatalogueItems | BatchItems) -> Batch:
    none = torch.zeros(len(weights), 0)
    return Batch(none, none, weights, weights, global_weight=4, items=items)


def test_full_softmax_and_its_gradients_equal_numpy() -> None:
    users, items = random_vectors(5, 9)
    own, starts = [8, 1, 3, 4, 0], [0, 3, 4, 9]  # the second day has one item
    weights = [1.0, 1.0, 1.0, 0.0, 1.0]
    none = torch.zeros(9, 0)
    compared = CatalogueItems(none, none, starts, torch.tensor(own))
    loss = read_loss("full_softmax")(
        Vectors(users, items, compared, ALONE), batch_of(torch.tensor(weights).double(), compared)
    )
    loss.backward()
    u, v = users.detach().numpy(), items.detach().numpy()
    total, of_users, of_items = 0.0, np.zeros_like(u), np.zeros_like(v)
    for row, (item, weight) in enumerate(zip(own, weights, strict=True)):
        day = next(day for day in range(3) if starts[day] <= item < starts[day + 1])
        kept = (np.arange(9) >= starts[day]) & (np.arange(9) < starts[day + 1])
        value, gradient = cross_entropy(v @ u[row], item, kept)
        total += weight * value / 4
        of_users[row] += weight / 4 * gradient @ v
        of_items += weight / 4 * np.outer(gradient, u[row])
    assert float(loss) == pytest.approx(total, rel=1e-12)
    assert_allclose(users.grad.numpy(), of_users, rtol=1e-10, atol=1e-14)
    assert_allclose(items.grad.numpy(), of_items, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("sizes", [[6], [4, 2], [3, 1, 2]])
def test_in_batch_softmax_and_its_gradients_equal_numpy_for_any_ranks(sizes: list[int]) -> None:
    """Rows 0, 2 and 4 have the same item, and row 5 has weight zero, so it is no item for other rows."""
    users, items = random_vectors(6, 6)
    keys = np.array([7, 8, 7, 9, 7, 10])
    weights = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    log_shares = np.log([0.4, 0.2, 0.4, 0.3, 0.4, 0.1])
    ends = np.cumsum([0, *sizes])

    def run(collectives: Collectives) -> tuple[float, NDArray, NDArray]:
        own = slice(ends[collectives.rank], ends[collectives.rank + 1])
        u, v = (part.detach()[own].clone().requires_grad_() for part in (users, items))
        none = torch.zeros(sizes[collectives.rank], 0)
        compared = BatchItems(none, none, torch.from_numpy(keys[own]), torch.from_numpy(log_shares[own]))
        loss = read_loss("in_batch_softmax")(
            Vectors(u, v, compared, collectives), batch_of(torch.from_numpy(weights[own]), compared)
        )
        loss.backward()
        return float(loss), u.grad.numpy(), v.grad.numpy()

    results = on_ranks(len(sizes), run)
    u, v = users.detach().numpy(), items.detach().numpy()
    total, of_users, of_items = 0.0, np.zeros_like(u), np.zeros_like(v)
    for row in range(6):
        others = (keys != keys[row]) & (weights > 0)
        others[row] = True
        value, gradient = cross_entropy(v @ u[row] - log_shares, row, others)
        total += weights[row] * value / 4
        of_users[row] += weights[row] / 4 * gradient @ v
        of_items += weights[row] / 4 * np.outer(gradient, u[row])
    assert sum(loss for loss, _, _ in results) == pytest.approx(total, rel=1e-12)
    for position, expected in ((1, of_users), (2, of_items)):
        parts = np.concatenate([result[position] for result in results])
        assert_allclose(parts, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["sasrec_dropout", "hstu_dropout", "bert4rec", "mult_vae"])
def test_a_sequence_model_in_training_has_the_user_vectors_of_its_logits(name: str) -> None:
    """Dropout is applied as in `forward`: the loss over vectors must not train another model."""
    spec = small_spec(name)
    model: Any = build_model(variant(name), spec, 1).train()
    rng = np.random.default_rng(2)
    width = model.layout.length
    ids = rng.integers(3, 9, (8, 2 + width))
    ids[:, 0] %= 5
    ids[4:6, 2:] = ids[3, 2:]  # equal histories, which have one mask
    ids[7, 2:] = 0
    categorical = torch.from_numpy(ids)
    dense = torch.from_numpy(rng.normal(size=(8, len(spec.dense))).astype(np.float32))
    for module in model.modules():
        if hasattr(module, "draw_mask"):
            module.draw_mask("7/0", range(2), [4, 4])
    logits = model(dense, categorical)
    users, items = model.user_vectors(dense, categorical), model.item_vectors(dense, categorical)
    bias = getattr(model, "bias", 0)  # the vectors of BERT4Rec and Mult-VAE contain their biases
    torch.testing.assert_close((users * items).sum(dim=1) + bias, logits)
    with_dropout = users.detach()
    assert not torch.allclose(with_dropout, model.eval().user_vectors(dense, categorical), atol=1e-4)


def test_only_models_with_vectors_can_be_trained() -> None:
    spec = FeatureSpec((Feature("C1", "categorical", "int32", "item", 9),), ("row_id",), "w1")
    for name in {**VARIANTS, **SEQUENCE_VARIANTS}:
        model = build_model(variant(name), small_spec(name))
        for loss in LOSSES:
            if isinstance(model, VectorModel):
                check_loss(Train(loss=loss), variant(name))
            else:
                architecture = variant(name).architecture
                with pytest.raises(ConfigError, match=rf"train.loss={loss} .* architecture {architecture} "):
                    check_loss(Train(loss=loss), variant(name))
    with pytest.raises(ConfigError, match="DLRM does not have such vectors"):
        Trainer(build_model(variant("dlrm"), spec), Train(loss="full_softmax"), ALONE)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"negatives": {}}, "does not use drawn negatives; set negatives=null"),
        ({"compile": True}, "but with loss=full_softmax this number varies; set compile=false"),
        ({"max_softmax_items": 0}, "greater than 0"),
        ({"l2": -0.1}, "greater than or equal to 0"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Train.model_validate({"loss": "full_softmax", **changed})


@pytest.mark.parametrize("loss", LOSSES)
def test_a_log_without_items_is_refused(loss: str) -> None:
    sections = {"model": {"architecture": "two_tower"}, "train": {"loss": loss}}
    with pytest.raises(
        ValidationError, match=f"train.loss={loss} compares items, so it needs the section keys"
    ):
        make_config(LakePaths("unused"), **sections)
    assert make_config(LakePaths("unused"), **{**sections, "train": {}}).keys is None
