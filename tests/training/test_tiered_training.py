"""Trainings with table rows in two memories, which change no bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conf.train_types import Embeddings
from conf.types import Train
from storage.feature_spec import FeatureSpec
from tests.checked_device import CheckedTensor, Checks, checked_device
from tests.training.architectures import SEQUENCE_VARIANTS, small_spec, variant
from tests.training.feature_rows import make_spec, random_rows
from tests.training.interpreted import device_of_kernels
from tests.training.ranks_in_threads import on_ranks
from tests.training.test_spread_tables import LENGTH, OPTIMIZERS, PLACEMENTS, ROWS, share, steps
from training import kernels
from training.checkpoints import open_trained, save_trained
from training.collectives import ALONE, Collectives
from training.data.batch import Batch
from training.embeddings.placement import Router, Tiers
from training.embeddings.rows import TieredRows, rows_of_block
from training.embeddings.table import tables_of
from training.loop.run import warm_start
from training.loop.train_step import Trainer
from training.models import build_model, planned_tables

CPU = torch.device("cpu")


STEPS = 4


DESCRIPTION: dict[str, Any] = {
    "version": "v1",
    "architecture": "dlrm",
    "model": variant("dlrm").model_dump(mode="json"),
    "feature_spec": make_spec(2, [40, 9, 150], lists=[30, 5]).to_json(),
}


def tiers_of(
    model: Any,
    spec: Any,
    settings: Embeddings,
    collectives: Collectives,
    share: float,
    *,
    pinned: bool = False,
) -> Tiers:
    """The first rows of each feature are hot, in number this share of all."""
    tables = planned_tables(model, spec, settings, collectives)
    hot = [tuple(int(rows * share) for rows in table.placement.cardinalities) for table in tables]
    return Tiers(tuple(hot), pinned=pinned, expected=0.5)


def trainer_of(
    collectives: Collectives,
    architecture: str,
    embeddings: dict[str, Any],
    hot_share: float | None,
    device: torch.device = CPU,
    **changed: Any,
) -> Trainer:
    if architecture in SEQUENCE_VARIANTS:
        spec = small_spec(architecture, 60)
    else:
        spec = make_spec(2, [40, 9, 150], lists=[30, 5])
    config = variant(architecture, **{"multi_hot": {"max_length": LENGTH}, **changed})
    parsed = Embeddings.model_validate(embeddings)
    pinned = device.type == "cuda"
    tiers = (
        None if hot_share is None else tiers_of(config, spec, parsed, collectives, hot_share, pinned=pinned)
    )
    model = build_model(config, spec, 7, parsed, collectives, tiers=tiers)
    rate = OPTIMIZERS[parsed.optimizer]
    train = Train.model_validate({"num_ranks": 1, "embedding_learning_rate": rate, "embeddings": embeddings})
    return Trainer(model.to(device).train(), train, collectives)


def batches_of(architecture: str, collectives: Collectives, device: torch.device = CPU) -> list[Batch]:
    if architecture not in SEQUENCE_VARIANTS:
        return [share(seed, collectives).to(device) for seed in range(STEPS)]
    rows = ROWS // collectives.size
    part = slice(collectives.rank * rows, (collectives.rank + 1) * rows)
    inputs = [random_rows(small_spec(architecture, 60), ROWS, seed) for seed in range(STEPS)]
    return [
        Batch(dense[part], ids[part], torch.from_numpy(of_step.labels[part]), torch.ones(rows), ROWS).to(
            device
        )
        for of_step in inputs
        for dense, ids in [of_step.tensors(LENGTH)]
    ]


def state_of(trainer: Trainer) -> dict[str, Any]:
    """The dense state, and for each tensor of rows the number of each row of each feature."""
    rows_of, state = trainer.row_state(), trainer.state()
    result: dict[str, Any] = {}
    for name, value in state.items():
        if name not in rows_of:
            result[name] = value.detach().cpu().tolist()
            continue
        rows = {}
        for block in rows_of[name]:
            of_block = rows_of_block(value, block).detach().cpu().float().tolist()
            first, step = block.first, block.step
            rows |= {(block.feature, first + place * step): row for place, row in enumerate(of_block)}
        result[name] = rows
    return result


def same(mine: Any, expected: Any) -> bool:
    """Compares without pytest's comparison of all rows, which takes minutes."""
    equal: bool = mine == expected
    return equal


def trained(
    collectives: Collectives, architecture: str, embeddings: dict[str, Any], hot: float | None, **changed: Any
) -> tuple[list[float], dict[str, Any]]:
    trainer = trainer_of(collectives, architecture, embeddings, hot, **changed)
    losses = steps(trainer, batches_of(architecture, collectives))
    for table in tables_of(trainer.model).values() if hot is not None else ():
        assert isinstance(table.matrix, TieredRows)
        assert len(table.weight) + len(table.tail) == sum(block.rows for block in table.blocks)
    return losses, state_of(trainer)


CASES = [
    ("dlrm", "row_wise_adagrad", {}),
    ("dlrm", "lazy_adam", {"embedding_storage": "bf16"}),
    ("dlrm", "sgd", {"embedding_storage": "fp16"}),
    ("wide_and_deep", "row_wise_adagrad", {}),  # its other table is trained by FTRL
    ("logistic_regression", "lazy_adam", {}),
    ("din", "lazy_adam", {}),
    ("sasrec", "row_wise_adagrad", {}),
]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("architecture, optimizer, changed", CASES)
def test_two_memories_change_no_bit(
    architecture: str, optimizer: str, changed: dict[str, Any], ranks: int
) -> None:
    for placement in ("row_wise", "auto") if ranks == 2 else ("auto",):
        embeddings = {**PLACEMENTS[placement], "optimizer": optimizer}

        def of(hot: float | None, embeddings: dict[str, Any] = embeddings) -> list[Any]:
            return on_ranks(
                ranks, lambda collectives: trained(collectives, architecture, embeddings, hot, **changed)
            )

        expected = of(None)
        assert expected[0][0][0] != expected[0][0][-1]
        for hot in (0.2, 0.0):
            assert same(of(hot), expected)


def test_the_memory_of_the_device_is_a_part_of_the_table() -> None:
    """Weights and the state of the optimizer."""
    for optimizer in ("row_wise_adagrad", "lazy_adam"):
        trainer = trainer_of(ALONE, "dlrm", {"optimizer": optimizer}, 0.2)
        plain = trainer_of(ALONE, "dlrm", {"optimizer": optimizer}, None)
        whole = plain.state()
        steps(trainer, batches_of("dlrm", ALONE))
        for name, value in trainer.state().items():
            if name in trainer.row_state():
                assert isinstance(value, TieredRows)
                assert value.hot.nbytes < 0.25 * whole[name].nbytes
                assert value.hot.nbytes + value.tail.nbytes == whole[name].nbytes


def test_a_row_of_the_tail_that_is_read_as_hot_changes_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(ALONE, "dlrm", {}, None)
    keys = Router.replicated_rows

    def shifted(router: Router, ids: Tensor, features: Tensor) -> Tensor:
        rows = keys(router, ids, features)
        return torch.where(rows == rows.max(), 0, rows)

    monkeypatch.setattr(Router, "replicated_rows", shifted)
    assert not same(trained(ALONE, "dlrm", {}, 0.2), expected)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of tensors by their name without the part that is drawn at random."""
    files = [path for path in folder.iterdir() if path.suffix == ".safetensors"]
    return {path.stem.rpartition("-")[0]: path.read_bytes() for path in files}


@pytest.mark.parametrize("before, after", [(0.2, None), (None, 0.2), (0.2, 0.5)])
def test_models_are_read_with_any_memory(tmp_path: Path, before: float | None, after: float | None) -> None:
    """And the files of a model are the same, whatever the memory of its rows was."""
    trainer = trainer_of(ALONE, "dlrm", {}, before)
    batches = batches_of("dlrm", ALONE)
    steps(trainer, batches)
    save_trained(str(tmp_path / "one"), trainer, DESCRIPTION, ALONE)
    other = trainer_of(ALONE, "dlrm", {}, after)
    steps(other, batches)
    save_trained(str(tmp_path / "two"), other, DESCRIPTION, ALONE)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    fresh = trainer_of(ALONE, "dlrm", {}, after)
    stored = open_trained(str(tmp_path / "one"))[0]
    stored.load(fresh.state(), fresh.row_state())
    assert same(state_of(fresh), state_of(trainer))
    assert steps(fresh, batches) == steps(trainer, batches)


def test_two_ranks_resume_what_one_rank_began(tmp_path: Path) -> None:
    trainer = trainer_of(ALONE, "dlrm", {}, 0.3)
    steps(trainer, batches_of("dlrm", ALONE))
    save_trained(str(tmp_path), trainer, DESCRIPTION, ALONE)

    def body(collectives: Collectives, hot: float | None) -> dict[str, Any]:
        fresh = trainer_of(collectives, "dlrm", PLACEMENTS["row_wise"], hot)
        open_trained(str(tmp_path))[0].load(fresh.state(), fresh.row_state())
        steps(fresh, batches_of("dlrm", collectives))
        return state_of(fresh)

    tiered = on_ranks(2, lambda ranks: body(ranks, 0.2))
    assert same(tiered, on_ranks(2, lambda ranks: body(ranks, None)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_parent_with_fewer_ids_fills_both_memories(tmp_path: Path, ranks: int) -> None:
    """A retraining starts from a model whose vocabularies were smaller; new rows keep their first numbers."""
    before = make_spec(2, [20, 9, 70], lists=[12, 5])
    after = FeatureSpec.from_json(DESCRIPTION["feature_spec"])
    config = variant("dlrm", multi_hot={"max_length": LENGTH})
    parent = Trainer(build_model(config, before, 3).train(), Train(num_ranks=1), ALONE)
    steps(
        parent,
        [replace(batch, categorical=batch.categorical.clamp(max=4)) for batch in batches_of("dlrm", ALONE)],
    )
    save_trained(str(tmp_path), parent, {**DESCRIPTION, "feature_spec": before.to_json()}, ALONE)

    def body(collectives: Collectives, hot: float | None) -> dict[str, Any]:
        trainer = trainer_of(collectives, "dlrm", PLACEMENTS["auto"], hot)
        warm_start(trainer, after, *open_trained(str(tmp_path)))
        steps(trainer, batches_of("dlrm", collectives))
        return state_of(trainer)

    expected = on_ranks(ranks, lambda collectives: body(collectives, None))
    for hot in (0.0, 0.2, 0.7):
        assert same(on_ranks(ranks, lambda collectives, hot=hot: body(collectives, hot)), expected)


def first_rows(batch: Batch, number: int) -> Batch:
    """Triton's interpreter needs milliseconds for each row."""
    tensors = (batch.dense, batch.categorical, batch.labels, batch.weights)
    return Batch(*(tensor[:number] for tensor in tensors), number)


@pytest.mark.parametrize("storage", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "sgd", "lazy_adam"])
def test_kernels_read_and_write_both_memories(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, storage: str
) -> None:
    device = device_of_kernels(monkeypatch)
    assert kernels.available(device)

    def of(hot: float | None) -> dict[str, Any]:
        embeddings = {"optimizer": optimizer}
        trainer = trainer_of(ALONE, "deepfm", embeddings, hot, device, embedding_storage=storage)
        steps(trainer, [first_rows(batch, 6) for batch in batches_of("deepfm", ALONE, device)[:2]])
        return state_of(trainer)

    assert same(of(0.2), of(None))


@settings(max_examples=30, deadline=None)
@given(
    hot=st.integers(0, 6),
    tail=st.integers(0, 6),
    gap=st.integers(0, 3),
    width=st.integers(1, 9),
    data=st.data(),
)
def test_rows_are_taken_and_put_as_by_torch(
    hot: int, tail: int, gap: int, width: int, data: st.DataObject
) -> None:
    """By both ways: torch's operators, and the kernels in Triton's interpreter."""
    first_tail = hot + gap
    valid = [*range(hot), *range(first_tail, first_tail + tail)]
    rows = torch.tensor(
        data.draw(st.lists(st.sampled_from(valid), max_size=9)) if valid else [], dtype=torch.int64
    )
    whole = torch.randn(first_tail + tail, width, generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        for by_kernel in (False, True):
            device = device_of_kernels(patch) if by_kernel else CPU
            matrix = TieredRows(
                whole[:hot].clone().to(device), whole[first_tail:].clone(), first_tail, by_kernel=by_kernel
            )
            taken = matrix.index_select(0, rows.to(device)).cpu()
            assert torch.equal(taken, whole.index_select(0, rows))
            distinct = rows.unique()
            values = torch.randn(len(distinct), width, generator=torch.Generator().manual_seed(2))
            matrix.index_copy_(0, distinct.to(device), values.to(device))
            expected = whole.index_copy(0, distinct, values)
            assert torch.equal(matrix.hot.cpu(), expected[:hot])
            assert torch.equal(matrix.tail, expected[first_tail:])


@pytest.mark.parametrize(
    "architecture, optimizer", [("dlrm", "row_wise_adagrad"), ("wide_and_deep", "lazy_adam")]
)
def test_the_tail_stays_in_host_memory(architecture: str, optimizer: str) -> None:
    """On a device that refuses tensors of other devices. The results are those of a CPU."""
    torch.set_num_threads(1)
    expected = trained(ALONE, architecture, {"optimizer": optimizer}, None)[1]
    with checked_device() as (device, _), Checks():
        trainer = trainer_of(ALONE, architecture, {"optimizer": optimizer}, 0.2, device)
        steps(trainer, batches_of(architecture, ALONE, device))
        for name, value in trainer.state().items():
            if name in trainer.row_state():
                assert isinstance(value, TieredRows)
                assert isinstance(value.hot, CheckedTensor)
                assert not isinstance(value.tail, CheckedTensor)
        state = state_of(trainer)
    for name, rows in expected.items():
        mine = state[name]
        if isinstance(rows, dict):
            assert mine.keys() == rows.keys()
            rows, mine = list(rows.values()), list(mine.values())
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(rows), rtol=1e-4, atol=1e-5)


def test_the_share_of_hot_lookups_is_that_of_the_ids() -> None:
    """On two ranks, since the last time; padding of lists is no lookup."""

    def body(collectives: Collectives) -> tuple[float, int, int]:
        trainer = trainer_of(collectives, "dlrm", PLACEMENTS["auto"], 0.2)
        batches = batches_of("dlrm", collectives)
        steps(trainer, batches[:1])
        trainer.facts()
        steps(trainer, batches[1:])
        hot = torch.tensor([8, 1, 30, *[6] * LENGTH, *[1] * LENGTH])
        ids = torch.cat([batch.categorical for batch in batches[1:]])
        counted = torch.cat([torch.ones_like(ids[:, :3], dtype=torch.bool), ids[:, 3:] != 0], dim=1)
        return trainer.facts()["hot_share"], int(((ids < hot) & counted).sum()), int(counted.sum())

    results = on_ranks(2, body)
    expected = sum(hot for _, hot, _ in results) / sum(lookups for *_, lookups in results)
    assert [share for share, *_ in results] == pytest.approx([expected] * 2, abs=1e-6)
    assert 0.2 < expected < 0.9
