"""Histories as parts of timelines: the results of rows alone, no later item, ranks, resumption, and the loader."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import horovod
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from conf.errors import DataError
from conf.types import ModelConfig, MultiHot, Reading, Train, TrainNegatives
from tests.checked_device import checked_device
from tests.training.feature_rows import Rows
from tests.training.feature_tables import write_file
from tests.training.ranks_in_threads import on_ranks
from tests.training.sequence_models import ITEMS, PLACES, PLAIN, config, randomised
from training.collectives import ALONE, Collectives
from training.data.batch import Batch
from training.data.item_catalogue import read_catalogue
from training.data.loader import Loader
from training.data.negative_sampler import NegativeSampler
from training.data.row_keys import order_by_user
from training.data.sharding import DataFile, RowOrder, plan_shards, row_groups, shards_of_rank
from training.loop.train_step import Trainer
from training.models import build_model
from training.models.layers import RandomLayer
from training.models.sequence import TILE_ROWS, Timelines

ROOT = Path(__file__).parents[2]
KEYED = replace(PLAIN, key_columns=("row_id", "user_key", "item_key"))
SHARDS, BATCH = 4, 128
LISTS = MultiHot(lengths={"history": PLACES})
CPU = torch.device("cpu")
# Of the forward pass: the groups of equal histories, the tiles and their sizes, the items that histories add, and the
# rows of each of two shards for three layers of dropout.
MOST_WAITS = 12


def histories_of(users: int, longest: int, seed: int) -> NDArray[np.int64]:
    """The histories (rows, PLACES) of successive choices of some users, each from some choice on."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(users):
        items = rng.integers(1, ITEMS, rng.integers(0, longest + 1))
        for end in range(rng.integers(0, len(items) + 1), len(items) + 1):
            history = items[max(0, end - PLACES) : end][::-1]
            rows.append(np.pad(history, (0, PLACES - len(history))))
    return np.array(rows)


def draw_masks(model: torch.nn.Module, shards: range, rows: list[int]) -> None:
    for number, layer in enumerate(module for module in model.modules() if isinstance(module, RandomLayer)):
        layer.draw_mask(f"1/2/{number}", shards, rows)


def trained_on(model: Any, categorical: torch.Tensor, cut: int, *, shared: bool) -> dict[str, torch.Tensor]:
    """The logits of a step's rows, of which `cut` belong to the first of two shards, and all gradients."""
    model.train().zero_grad()
    model.shares_histories = shared
    draw_masks(model, range(2), [cut, len(categorical) - cut])
    logits = model(torch.zeros(len(categorical), 0), categorical)
    (logits * torch.linspace(-1, 1, len(logits))).sum().backward()
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    of_table = model.embedding.take_gradient()
    rows = torch.zeros_like(model.embedding.weight)
    rows[of_table.rows] = of_table.values
    return {"logits": logits.detach(), "table": rows, **{name: g.clone() for name, g in gradients.items()}}


@settings(max_examples=40, deadline=None)
@given(
    users=st.integers(1, 40),
    longest=st.integers(0, 14),
    seed=st.integers(0, 2**20),
    heads=st.sampled_from([1, 2]),
    order=st.sampled_from(["users", "shuffled", "reversed"]),
    repeats=st.sampled_from([1, 3]),
    architecture=st.sampled_from(["sasrec", "hstu"]),
)
def test_logits_and_gradients_are_those_of_rows_alone(
    users: int, longest: int, seed: int, heads: int, order: str, repeats: int, architecture: str
) -> None:
    """In any order of rows, with empty and full histories, and with several rows of one history."""
    histories = histories_of(users, longest, seed).repeat(repeats, axis=0)
    rng = np.random.default_rng(seed)
    if order == "shuffled":
        rng.shuffle(histories)
    if order == "reversed":
        histories = histories[::-1]
    items = rng.integers(1, ITEMS, (len(histories), 1))
    categorical = torch.from_numpy(np.concatenate([items, histories], axis=1))
    model = randomised(architecture, PLAIN, blocks=1, heads=heads)
    cut = int(rng.integers(0, len(histories) + 1))
    alone, shared = (trained_on(model, categorical, cut, shared=shared) for shared in (False, True))
    assert alone.keys() == shared.keys()
    for name, value in alone.items():
        largest = float(value.abs().max())
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=2e-5 * max(largest, 1), msg=name)


def test_an_item_that_histories_share_is_encoded_once() -> None:
    """A user's ten choices: the histories slide when they are full, and a row of another user begins anew."""
    items = np.arange(1, 11)
    own = [np.pad(items[max(0, end - PLACES) : end][::-1], (0, max(PLACES - end, 0))) for end in range(10)]
    other = np.pad([7, 3, 5], (0, PLACES - 3))
    sequences = torch.from_numpy(np.array([*own, other]))
    timelines = Timelines.of(sequences, torch.arange(11), [0])
    assert timelines.items.tolist() == [*range(1, 10), 5, 3, 7]
    assert timelines.first_rows.tolist() == [*range(1, 10), 10, 10, 10]
    assert timelines.lengths[0, :11].tolist() == [*range(PLACES + 1), PLACES, PLACES, PLACES, 3]
    in_shards = Timelines.of(sequences, torch.arange(11), [0, 4])  # the second shard's first row is whole
    assert in_shards.items.tolist() == [1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 3, 7]


def test_a_timeline_ends_with_its_tile() -> None:
    items = np.random.default_rng(1).integers(1, ITEMS, 3 * TILE_ROWS)
    rows = [items[end - PLACES : end][::-1] for end in range(PLACES, len(items))]
    sequences = torch.from_numpy(np.array(rows))
    timelines = Timelines.of(sequences, torch.arange(len(rows)), [0])
    tiles = -(-len(rows) // TILE_ROWS)
    assert timelines.distances.shape == (tiles, TILE_ROWS, PLACES + TILE_ROWS - 1)
    assert len(timelines.items) == len(rows) + tiles * (PLACES - 1)


@pytest.mark.parametrize("architecture", ["sasrec", "hstu"])
@pytest.mark.parametrize("heads", [1, 2])
def test_no_row_sees_a_later_item(heads: int, architecture: str) -> None:
    """The logits of the first rows stay equal to the bit if the items and histories of later rows change."""
    model = randomised(architecture, PLAIN, blocks=1, heads=heads).train()
    model.shares_histories = True
    rng = np.random.default_rng(5)
    items = rng.integers(1, ITEMS, 12)

    def logits(items: NDArray) -> torch.Tensor:
        rows = [
            [items[end], *np.pad(items[max(0, end - PLACES) : end][::-1], (0, max(PLACES - end, 0)))]
            for end in range(12)
        ]
        draw_masks(model, range(1), [12])
        with torch.no_grad():
            result: torch.Tensor = model(torch.zeros(12, 0), torch.from_numpy(np.array(rows)))
        return result

    before = logits(items)
    for place in range(1, 12):
        changed = items.copy()
        changed[place:] = 1 + changed[place:] % (ITEMS - 1)
        after = logits(changed)
        assert torch.equal(after[:place], before[:place])
        assert not torch.equal(after[place:], before[place:])


@pytest.mark.parametrize("architecture", ["sasrec", "hstu"])
def test_masks_do_not_depend_on_the_number_of_ranks(architecture: str) -> None:
    """Four shards on one rank get the vectors of two shards on each of two ranks, with dropout."""
    model = randomised(architecture, PLAIN, blocks=1, dropout=0.5).train()
    model.shares_histories = True
    parts = [histories_of(9, 9, seed) for seed in range(4)]
    categorical = torch.from_numpy(np.pad(np.concatenate(parts), ((0, 0), (1, 0)), constant_values=1))
    rows = [len(part) for part in parts]

    def vectors(shards: range) -> torch.Tensor:
        own = rows[shards.start : shards.stop]
        first = sum(rows[: shards.start])
        draw_masks(model, shards, own)
        with torch.no_grad():
            result: torch.Tensor = model.user_vectors(
                torch.zeros(sum(own), 0), categorical[first : first + sum(own)]
            )
        return result

    whole = vectors(range(4))
    halves = torch.cat([vectors(range(2)), vectors(range(2, 4))])
    torch.testing.assert_close(halves, whole, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(whole, model.eval().user_vectors(torch.zeros(len(whole), 0), categorical))


@pytest.mark.parametrize("architecture", ["sasrec", "hstu"])
@pytest.mark.parametrize("shared, blocks", [(False, 1), (True, 2)])
def test_other_models_encode_each_history(
    shared: bool, blocks: int, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two blocks, an item's input to the second one depends on the histories that have it."""
    monkeypatch.setattr(Timelines, "of", None)
    model = randomised(architecture, PLAIN, blocks=blocks).train()
    model.shares_histories = shared
    draw_masks(model, range(1), [2])
    assert model(torch.zeros(2, 0), torch.tensor([[1, 2, *[0] * 5], [1, 3, 2, *[0] * 4]])).shape == (2,)


@pytest.mark.parametrize("architecture", ["sasrec", "hstu"])
def test_everything_lies_on_the_device_and_few_operations_wait(architecture: str) -> None:
    """The number of waits does not grow with the number of tiles."""
    model = randomised(architecture, PLAIN, blocks=1, heads=2, dropout=0.5).train()
    model.shares_histories = True
    counts, shards = [], range(2)
    for users in (4, 60):
        histories = histories_of(users, 9, seed=1)
        categorical = torch.from_numpy(np.pad(histories, ((0, 0), (1, 0)), constant_values=1))
        rows = [3, len(histories) - 3]
        draw_masks(model, shards, rows)
        on_host = model.user_vectors(torch.zeros(len(histories), 0), categorical)
        with checked_device() as (device, checks):
            moved = deepcopy(model).to(device)
            draw_masks(moved, shards, rows)
            inputs = torch.zeros(len(histories), 0).to(device), categorical.to(device)
            checks.waits.clear()
            vectors = moved.user_vectors(*inputs)
            counts.append(sum(checks.waits.values()))
            assert vectors.device == device
            torch.testing.assert_close(vectors.cpu(), on_host)
    assert counts[0] == counts[1]
    assert counts[0] <= MOST_WAITS


# The loader, and trainings on ranks.


def logged(users: int, choices: int, seed: int) -> Rows:
    """Rows in the order of time, so that the rows of a user are far from each other; most are choices.

    The key of a user is `u` and a number. After each item comes one of two items.
    """
    rng = np.random.default_rng(seed)
    known: dict[int, list[int]] = {user: [int(rng.integers(3, ITEMS))] for user in range(users)}
    labels, items, histories, keys = [], [], [], []
    for _ in range(choices):
        user, label = int(rng.integers(users)), int(rng.random() < 0.9)
        own = known[user]
        item = 3 + (own[-1] - 3 + int(rng.integers(1, 3))) % (ITEMS - 3)
        labels.append(label)
        items.append(item)
        histories.append(own[-PLACES:][::-1])
        keys.append(f"u{user}")
        if label:
            own.append(item)
    return Rows(
        np.array(labels, np.float32),
        np.zeros((choices, 0), np.float32),
        np.array(items, np.int32)[:, None],
        (histories,),
        (keys, [f"i{item}" for item in items]),
    )


def write(folder: Path, rows: Rows, file_rows: int) -> list[DataFile]:
    files = []
    for first in range(0, len(rows), file_rows):
        part = rows.part(first, file_rows)
        path = folder / f"part-{first}.parquet"
        write_file(path, KEYED, part)
        files.append(DataFile(str(path), len(part), dt="2026-01-01"))
    return files


def loader_of(
    files: list[DataFile], collectives: Collectives = ALONE, seed: int | None = 3, **reading: Any
) -> Loader:
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    shards = shards_of_rank(SHARDS, collectives.rank, collectives.size)
    settings = Reading.model_validate({"pool_rows": 1, **reading})
    return Loader(files, plan, shards, KEYED, seed, LISTS, reading=settings, with_row_keys=True, by_user=True)


TENSORS = ("categorical", "labels", "weights", "row_keys")


def row_ids(batches: list[Batch]) -> list[int]:
    ids = []
    for batch in batches:
        assert batch.row_keys is not None
        ids += batch.row_keys[batch.weights > 0, 0].tolist()
    return ids


def test_rows_of_a_user_follow_each_other_in_the_order_of_time(tmp_path: Path) -> None:
    rows = logged(30, 900, seed=1)
    (file,) = write(tmp_path, rows, 900)
    order = order_by_user(row_groups([file])[0])
    assert sorted(order) == list(range(900))
    users = [rows.keys[0][row] for row in order]
    assert sum(left != right for left, right in pairwise(users)) == 29
    for user in set(users):
        own = [row for row in order if rows.keys[0][row] == user]
        assert own == sorted(own)


def test_times_come_before_row_ids(tmp_path: Path) -> None:
    (file,) = write(tmp_path, logged(3, 60, seed=1), 60)
    table = pq.read_table(file.path)
    times = np.random.default_rng(0).permutation(60) // 2
    pq.write_table(table.append_column("event_time", [times]), file.path)
    order = order_by_user(row_groups([file])[0])
    users = table.column("user_key").to_pylist()
    expected = sorted(range(60), key=lambda row: (users.index(users[row]), times[row], row))
    assert order.tolist() == expected


def test_a_log_without_users_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_file(path, PLAIN, replace(logged(3, 60, seed=1), keys=()))
    with pytest.raises(DataError, match=r"lacks the columns \['user_key'\].*train.shuffle=users"):
        order_by_user(row_groups([DataFile(str(path), 60)])[0])


@pytest.mark.parametrize("seed", [3, None])
def test_every_row_arrives_once_an_epoch_beside_rows_of_its_user(tmp_path: Path, seed: int | None) -> None:
    rows = logged(30, 1_000, seed=1)
    files = write(tmp_path, rows, 400)
    loader = loader_of(files, seed=seed)
    batches, steps = list(loader.batches(2)), loader.plan.steps
    epochs = [row_ids(batches[:steps]), row_ids(batches[steps:])]
    for ids in epochs:
        assert sorted(ids) == list(range(1_000))
        users = [rows.keys[0][row] for row in ids]
        # 32 rows of 30 users with about 13 rows each in a file are rows of about four users.
        assert sum(left == right for left, right in pairwise(users)) > 800
    assert (epochs[0] == epochs[1]) == (seed is None)


@pytest.mark.parametrize("pools", ["host", "device"])
def test_batches_depend_neither_on_ranks_nor_on_where_a_training_resumes(tmp_path: Path, pools: str) -> None:
    files = write(tmp_path, logged(30, 1_000, seed=1), 300)
    whole = list(loader_of(files).batches(2))

    def of_rank(collectives: Collectives) -> list[Batch]:
        return list(loader_of(files, collectives, pools=pools).batches(2))

    for ranks in (1, 2, 4):
        for expected, *parts in zip(whole, *on_ranks(ranks, of_rank), strict=True):
            for name in TENSORS:
                together = torch.cat([getattr(part, name) for part in parts])
                assert torch.equal(together, getattr(expected, name)), name
    for first in (1, 5, 9):
        resumed = list(loader_of(files, pools=pools).batches(2, first))
        for actual, expected in zip(resumed, whole[first:], strict=True):
            assert all(torch.equal(getattr(actual, name), getattr(expected, name)) for name in TENSORS)


@given(st.integers(0, 200), st.integers(0, 3))
def test_blocks_of_a_window_stay_together(rows: int, epoch: int) -> None:
    order = RowOrder(1, epoch, by_user=True).window(2, 0, rows)
    assert order is not None
    assert sorted(order) == list(range(rows))
    whole = rows // 32 * 32
    assert all(block.tolist() == [*range(block[0], block[0] + 32)] for block in order[:whole].reshape(-1, 32))
    assert order[whole:].tolist() == list(range(whole, rows))


MODEL = {"blocks": 1, "heads": 2, "dropout": 0.3}


def losses_of(files: list[DataFile], collectives: Collectives, *, shared: bool = True) -> list[float]:
    """The losses of a training with drawn negatives on this rank's shards."""
    torch.set_num_threads(1)
    model = build_model(ModelConfig.model_validate(config("sasrec", **MODEL).model_dump()), KEYED, 1).train()
    model.shares_histories = shared  # type: ignore[assignment]
    section = {"num_shards": SHARDS, "global_batch_size": BATCH, "loss": "softmax", "shuffle": "users"}
    rates = {"learning_rate": 0.01, "embedding_learning_rate": 0.01, "embeddings": {"optimizer": "lazy_adam"}}
    train = Train.model_validate({"num_ranks": collectives.size, "negatives": {}, **section, **rates})
    catalogue = read_catalogue(files, [], KEYED, LISTS, Reading(), collectives, CPU)
    draws, shards = TrainNegatives(per_positive=4), SHARDS // collectives.size
    sampler = NegativeSampler(catalogue, draws, 7, KEYED, LISTS, shards, of_vectors=True)
    trainer = Trainer(model, train, collectives, sampler)
    loader = loader_of(files, collectives, pool_rows=10_000)
    return [float(trainer.step(batch, 1.0)) for batch in loader.batches(4)]


def test_a_training_learns_with_shared_histories(tmp_path: Path) -> None:
    files = write(tmp_path, logged(60, 2_000, seed=1), 700)
    losses = losses_of(files, ALONE)
    assert np.mean(losses[-8:]) < 0.9 * np.mean(losses[:8])
    # Other masks of dropout, from the same distribution: the ratio varies by 6% (one standard deviation, 8 seeds).
    alone = losses_of(files, ALONE, shared=False)
    assert np.mean(losses[-30:]) == pytest.approx(np.mean(alone[-30:]), rel=0.18)


def _train_on_horovod(folder: str) -> list[float]:
    import horovod.torch as hvd

    from training.launch.rank_main import HorovodCollectives

    hvd.init()
    try:
        files = [
            DataFile(str(path), pq.read_metadata(path).num_rows, dt="2026-01-01")
            for path in sorted(Path(folder).glob("*.parquet"))
        ]
        return losses_of(files, HorovodCollectives())
    finally:
        hvd.shutdown()


@pytest.mark.processes
def test_horovod_ranks_train_as_one(tmp_path: Path) -> None:
    write(tmp_path, logged(60, 1_000, seed=1), 400)
    files = [
        DataFile(str(path), pq.read_metadata(path).num_rows, dt="2026-01-01")
        for path in sorted(tmp_path.glob("*.parquet"))
    ]
    alone = losses_of(files, ALONE)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))  # the ranks import this file
        of_ranks = horovod.run(
            _train_on_horovod, (str(tmp_path),), num_proc=2, use_gloo=True, start_timeout=600
        )
    for losses in of_ranks:
        np.testing.assert_allclose(losses, alone, rtol=1e-3)
