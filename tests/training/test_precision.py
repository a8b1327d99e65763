"""Mixed precision, loss scaling, clipping and the compiled dense part, on one rank and on several."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from conf.errors import ConfigError
from conf.types import ModelConfig, MultiHot, Train
from metrics import auc
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.feature_rows import Rows, make_spec, random_rows, segment_rows
from tests.training.ranks_in_threads import on_ranks
from training.collectives import Collectives, LocalCollectives
from training.data.batch import Batch, DrawnItems
from training.device import mixed_precision
from training.embeddings.rows import SummedRowGradient
from training.embeddings.table import tables_of
from training.loop import forward
from training.loop.forward import DensePart, Forward, record
from training.loop.train_step import Trainer
from training.models import build_model
from training.models.click_model import ClickModel
from training.models.factorization import VectorModel
from training.optimizers.gradients import LossScale, clipped

CPU = torch.device("cpu")
DLRM = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [16, 8], "top_mlp": [32, 16]}
STEPS, ROWS, SHARDS = 40, 512, 4


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def batch_of(rows: Rows, first: int, count: int, rank: int = 0, ranks: int = 1) -> Batch:
    """A rank's part of a global batch."""
    part = rows.part(first + rank * count // ranks, count // ranks)
    dense, categorical = part.tensors(length=3)
    labels = torch.from_numpy(part.labels)
    return Batch(dense, categorical, labels, torch.ones_like(labels), count)


def train_steps(
    collectives: Collectives, rows: Rows, steps: int = STEPS, seed: int = 0, **train: Any
) -> tuple[Trainer, list[float]]:
    spec, _ = segment_rows(1, 0)
    model = build_model(ModelConfig.model_validate(DLRM), spec, seed)
    settings = {"num_ranks": collectives.size, "num_shards": SHARDS, "global_batch_size": ROWS, **train}
    trainer = Trainer(model, Train.model_validate(settings), collectives)
    losses = []
    for step in range(steps):
        first = step * ROWS % len(rows)
        losses.append(
            float(trainer.step(batch_of(rows, first, ROWS, collectives.rank, collectives.size), 1.0))
        )
    return trainer, losses


@torch.no_grad()
def probabilities(model: nn.Module, rows: Rows, precision: str = "fp32") -> Tensor:
    with mixed_precision(precision, CPU):
        logits = model.eval()(*rows.tensors(length=3))
    return torch.sigmoid(logits.float())


@pytest.fixture(scope="module")
def rows() -> Rows:
    return segment_rows(STEPS * ROWS, seed=1)[1]


@pytest.fixture(scope="module")
def held_out() -> Rows:
    return segment_rows(8_000, seed=2)[1]


def test_equal_weights_score_alike_in_every_precision(rows: Rows, held_out: Rows) -> None:
    trainer, _ = train_steps(LocalCollectives(), rows)
    full = probabilities(trainer.model, held_out)
    area = auc(held_out.labels, full)
    assert area > 0.7
    for precision in ("bf16", "fp16"):
        half = probabilities(trainer.model, held_out, precision)
        assert not torch.equal(half, full)
        assert abs(auc(held_out.labels, half) - area) < 2e-4
        # On these steep probabilities (0.2 and 0.8) 5.5e-5 in fp16, and 3.9e-4 in bf16, which keeps three
        # bits less.
        assert float((half - full).abs().mean()) < {"fp16": 2e-4, "bf16": 1e-3}[precision]


def area_of(rows: Rows, held_out: Rows, seed: int, **train: Any) -> float:
    """The AUC after a training."""
    trainer, _ = train_steps(LocalCollectives(), rows, seed=seed, **train)
    return auc(held_out.labels, probabilities(trainer.model, held_out))


@pytest.fixture(scope="module")
def of_seeds(rows: Rows, held_out: Rows) -> list[float]:
    """The AUC of trainings in float32 with other seeds."""
    return [area_of(rows, held_out, seed) for seed in range(4)]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_in_mixed_precision_stays_within_two_seed_deviations(
    rows: Rows, held_out: Rows, of_seeds: list[float], precision: str
) -> None:
    difference = area_of(rows, held_out, 0, precision=precision) - of_seeds[0]
    assert abs(difference) < 2 * np.std(of_seeds, ddof=1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_state_and_gradients_stay_float32(rows: Rows, precision: str) -> None:
    trainer, _ = train_steps(LocalCollectives(), rows, steps=2, precision=precision)
    floating = {name: value.dtype for name, value in trainer.state().items() if value.is_floating_point()}
    assert set(floating.values()) == {torch.float32}
    trainer._gradients(batch_of(rows, 0, ROWS), progress=1.0)
    assert all(
        parameter.grad is None or parameter.grad.dtype == torch.float32
        for parameter in trainer.model.parameters()
    )


@pytest.mark.parametrize(
    "train, tolerance, numbers",
    [
        ({"clip_norm": 0.01, "learning_rate": 3e-4}, 1e-4, (2, 4)),
        ({"precision": "bf16"}, 5e-3, (2,)),
        ({"precision": "fp16"}, 3e-3, (4,)),
    ],
)
def test_ranks_train_as_one_does(
    rows: Rows, train: dict[str, Any], tolerance: float, numbers: tuple[int, ...]
) -> None:
    """Losses differ more in half precision, because a sum that rounds differently may change a 16-bit number.

    In float32 they differ by 2e-7. On some CPUs, in one of several trainings, a sum rounds to the other side
    of a ReLU's kink, and Adam makes a step of its whole rate. At a rate of 0.003 losses then differed by
    2e-3. So this test trains at a tenth of that rate.
    """
    _, one = train_steps(LocalCollectives(), rows, **train)
    for ranks in numbers:
        for _, losses in on_ranks(ranks, lambda collectives: train_steps(collectives, rows, **train)):
            np.testing.assert_allclose(losses, one, rtol=tolerance)


def test_clipping_shortens_what_is_longer_and_leaves_the_rest() -> None:
    gradient = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(clipped(gradient, 1.0), torch.tensor([0.6, 0.8]))
    assert torch.equal(clipped(gradient, 5.0), gradient)
    assert clipped(gradient, None) is gradient
    assert torch.equal(clipped(torch.zeros(2), 1.0), torch.zeros(2))


def test_clipping_changes_a_training(rows: Rows) -> None:
    _, free = train_steps(LocalCollectives(), rows, steps=5)
    _, bound = train_steps(LocalCollectives(), rows, steps=5, clip_norm=1e-6)
    assert free[0] == bound[0]
    assert free[1:] != bound[1:]


def gradients(*values: float) -> list[SummedRowGradient]:
    return [SummedRowGradient(torch.arange(len(values)), torch.tensor([[value] for value in values]))]


def test_the_scale_halves_at_an_overflow_and_doubles_after_many_good_steps() -> None:
    scale, here, finite = LossScale(CPU, active=True), LocalCollectives(), torch.ones(3)
    assert not scale.accepts(torch.tensor([1.0, torch.inf]), [], here)
    assert not scale.accepts(finite, gradients(1.0, torch.nan), here)
    assert scale.facts() == {"loss_scale": 2.0**14, "skipped_steps": 2}
    for _ in range(LossScale.growth_steps):
        assert scale.accepts(finite, gradients(1.0), here)
    assert scale.facts() == {"loss_scale": 2.0**15, "skipped_steps": 2}


def test_at_a_scale_of_one_nothing_is_skipped() -> None:
    scale, here = LossScale(CPU, active=True), LocalCollectives()
    answers = [scale.accepts(torch.tensor([torch.nan]), [], here) for _ in range(18)]
    assert answers == [False] * 16 + [True] * 2


def test_a_rank_that_overflows_stops_the_update_of_all() -> None:
    def body(collectives: Collectives) -> tuple[bool, float]:
        scale = LossScale(CPU, active=True)
        rows = gradients(torch.inf if collectives.rank == 1 else 1.0)
        return scale.accepts(torch.ones(2), rows, collectives), scale.facts()["loss_scale"]

    assert on_ranks(3, body) == [(False, 2.0**15)] * 3


def test_a_skipped_step_changes_nothing_but_the_scale(rows: Rows) -> None:
    trainer, _ = train_steps(LocalCollectives(), rows, steps=1, precision="fp16")
    trainer.state()["scaler.scale"].fill_(2.0**40)
    before = {name: value.clone() for name, value in trainer.state().items()}
    loss = float(trainer.step(batch_of(rows, 0, ROWS), 1.0))
    changed = {name for name, value in trainer.state().items() if not torch.equal(value, before[name])}
    assert changed == {"scaler.scale", "scaler.skipped", "scaler.good_steps"}
    assert trainer.facts() == {"loss_scale": 2.0**39, "skipped_steps": 1}
    assert 0.3 < loss < 1  # that of the forward pass, unscaled


def test_only_fp16_has_a_scale(rows: Rows) -> None:
    for precision in ("fp32", "tf32", "bf16"):
        trainer, _ = train_steps(LocalCollectives(), rows, steps=1, precision=precision)
        assert trainer.facts() == {}
        assert not any(name.startswith("scaler.") for name in trainer.state())


class OneNumberPerRow(TorchDispatchMode):
    """Records operations, except conversions, that return 16-bit numbers, one for each of some rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), named: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*arguments, **(named or {}))
        of_rows = isinstance(result, Tensor) and result.numel() == self.rows
        if of_rows and result.dtype == torch.bfloat16 and operation is not torch.ops.aten._to_copy.default:
            self.operations.append(str(operation))
        return result


@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
def test_no_part_of_a_logit_is_a_16_bit_number(name: str) -> None:
    """The parts are those of linear layers, of products of vectors, and of the last layer of an MLP."""
    rows, spec = 37, small_spec(name)
    model = build_model(variant(name, multi_hot={"max_length": 3}), spec)
    inputs = random_rows(spec, rows, seed=0).tensors(length=3)
    with mixed_precision("bf16", CPU), OneNumberPerRow(rows) as recorded:
        logits = model(*inputs)
    assert recorded.operations == []
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("name", sorted(SEQUENCE_VARIANTS.keys() - {"din", "din_dropout"}))
def test_sums_of_item_vectors_are_not_rounded_to_16_bits(name: str) -> None:
    """Rounding them changes the logit as much as rounding the logit itself."""
    spec = small_spec(name)
    model = build_model(variant(name, multi_hot={"max_length": 3}), spec).eval()
    assert isinstance(model, VectorModel)
    dense, categorical = random_rows(spec, 37, seed=0).tensors(length=3)
    exact = model.item_vectors(dense, categorical)
    with mixed_precision("bf16", CPU):
        assert torch.equal(model.item_vectors(dense, categorical), exact)


@pytest.mark.parametrize("compiled", [True, False])
def test_products_with_drawn_items_are_float32(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(forward, "is_compiled", lambda *_: False)
    spec, rows, group = small_spec("two_tower"), 16, 5
    model = build_model(variant("two_tower", multi_hot={"max_length": 3}), spec)
    users, items = (random_rows(spec, rows, seed).tensors(length=3) for seed in (0, 1))
    index = torch.randint(0, rows, (rows, group), generator=torch.Generator().manual_seed(0))
    batch = Batch(*users, torch.zeros(0), torch.zeros(0), rows, items=DrawnItems(*items, index), group=group)
    train = {"precision": "bf16", "loss": "softmax", "negatives": {"per_positive": group - 1}}
    with torch.no_grad():
        logits = Forward(model, Train.model_validate(train))._logits(batch)
        with mixed_precision("bf16", CPU):
            of_users, of_items = model.user_vectors(*users), model.item_vectors(*items)
    expected = (of_users.double() @ of_items.double().t()).gather(1, index).flatten()
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_dense_part_of_every_architecture_is_its_model(name: str) -> None:
    """Called with vectors in place of ids, and with the same parameters, not copies."""
    spec = make_spec(2, [9, 5], lists=[7])
    some = random_rows(spec, 32, seed=0)
    config = variant(name).model_copy(update={"multi_hot": MultiHot(max_length=3)})
    model = build_model(config, spec).eval()
    dense, categorical = some.tensors(length=3)
    assert isinstance(model, ClickModel)
    part = DensePart(model).eval()
    vectors = model.embed(categorical)
    assert len(vectors) == len(tables_of(model))
    assert torch.equal(part(dense, *vectors), model(dense, categorical))
    assert [id(parameter) for parameter in part.parameters()] == [
        id(parameter) for parameter in model.parameters()
    ]


def test_a_model_that_does_not_separate_lookups_cannot_be_compiled() -> None:
    train = Train.model_validate({"num_ranks": 1, "compile": True})
    with pytest.raises(ConfigError, match="Linear does not separate lookups from its dense part"):
        Forward(nn.Linear(1, 1), train)


def test_other_threads_may_use_the_gpu_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def graph(name: str, *, pool: int, capture_error_mode: str = "global") -> tuple[str, int, str]:
        return name, pool, capture_error_mode

    recorded = []

    def make_graphed_callables(
        part: nn.Module, samples: tuple[Tensor, ...], *, allow_unused_input: bool
    ) -> None:
        recorded.append((part, samples, allow_unused_input, torch.cuda.graph("forward", pool=3)))
        raise RuntimeError("the recording failed")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make_graphed_callables)
    part, samples = nn.Linear(2, 1), (torch.zeros(3, 2),)
    with pytest.raises(RuntimeError, match="the recording failed"):
        record(part, samples)
    assert recorded == [(part, samples, True, ("forward", 3, "thread_local"))]
    assert torch.cuda.graph is graph


def test_torch_still_records_by_the_class_that_we_replace() -> None:
    """If this fails after an update of torch, see `record`: pass the mode as a parameter if there is one."""
    function = torch.cuda.make_graphed_callables
    assert "capture_error_mode" not in inspect.signature(function).parameters
    assert inspect.getsource(function).count("with torch.cuda.graph(") == 2


def test_cuda_graphs_want_a_gpu(rows: Rows) -> None:
    with pytest.raises(
        ConfigError, match=r"train\.cuda_graphs=true needs a GPU, but this rank trains on cpu"
    ):
        train_steps(LocalCollectives(), rows, steps=1, cuda_graphs=True)


@pytest.mark.processes
def test_a_compiled_training_is_the_same(rows: Rows) -> None:
    _, plain = train_steps(LocalCollectives(), rows, steps=10)
    trainer, compiled = train_steps(LocalCollectives(), rows, steps=10, compile=True)
    np.testing.assert_allclose(compiled, plain, rtol=1e-4)
    assert trainer._forward._prepared is not None


def test_what_does_not_compile_is_named(rows: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import config

    torch.compiler.reset()  # what the test before compiled would serve here too
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # The undo of monkeypatch would delete these settings.
    changed = config.patch({"cpp.cxx": ("/no/such/compiler",), "force_disable_caches": True})
    with changed, pytest.raises(ConfigError, match=r"train.compile=true: DLRM does not compile"):
        train_steps(LocalCollectives(), rows, steps=1, compile=True)
