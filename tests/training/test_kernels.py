"""The kernels against NumPy: on a GPU where there is one, elsewhere on the CPU under Triton's interpreter."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.feature_spec import PAD_ID
from tests.training.interpreted import device_of_kernels
from training import kernels
from training.data.sharding import BLOCK_ROWS
from training.device import on_device_of

ROOT = Path(__file__).parents[2]
Floats = NDArray[np.float64]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_of_kernels(monkeypatch)


def test_without_a_gpu_kernels_are_for_the_interpreter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    assert not kernels.available(torch.device("cpu"))
    assert kernels.available(torch.device("cuda"))
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    assert kernels.available(torch.device("cpu"))
    assert not kernels.available(torch.device("meta"))


def plain_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def ids_of(rows: int, cardinalities: list[int], lengths: list[int], seed: int) -> NDArray[np.int64]:
    """(rows, W) ids. Lists have padding, also in the middle; the lists of the first row are all padding."""
    rng = np.random.default_rng(seed)
    single = len(cardinalities) - len(lengths)
    columns = [rng.integers(0, cardinality, rows) for cardinality in cardinalities[:single]]
    for cardinality, length in zip(cardinalities[single:], lengths, strict=True):
        ids = rng.integers(0, cardinality, (rows, length)) * (rng.random((rows, length)) < 0.6)
        if rows:
            ids[0] = PAD_ID
        columns += list(ids.T)
    return np.stack(columns, axis=1).astype(np.int64)


def starts_of(cardinalities: list[int], device: torch.device) -> Tensor:
    return torch.tensor(np.cumsum([0, *cardinalities])[:-1], device=device)


def pooled(
    weight: Floats, ids: NDArray[np.int64], cardinalities: list[int], lengths: list[int], mean: bool
) -> Floats:
    """(B, C, E) one vector at a time."""
    single = len(cardinalities) - len(lengths)
    starts = np.cumsum([0, *cardinalities])
    out = np.zeros((len(ids), len(cardinalities), weight.shape[1]))
    for row, row_ids in enumerate(ids):
        for feature in range(single):
            out[row, feature] = weight[starts[feature] + row_ids[feature]]
        column = single
        for feature, length in enumerate(lengths, start=single):
            kept = [id_ for id_ in row_ids[column : column + length] if id_ != PAD_ID]
            for id_ in kept:
                out[row, feature] += weight[starts[feature] + id_] / (len(kept) if mean else 1)
            column += length
    return out


@pytest.mark.parametrize(
    "rows, cardinalities, lengths, dim, mean",
    [
        (7, [5, 3, 11], [], 5, True),
        (1, [4], [], 1, False),
        (33, [9, 2, 6, 8], [3, 1], 16, True),
        (5, [3, 7], [4], 7, False),
        (4, [6, 6], [2, 5], 3, True),
        (0, [4, 4], [], 8, True),
    ],
)
@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.float16])
def test_gather(
    device: torch.device,
    rows: int,
    cardinalities: list[int],
    lengths: list[int],
    dim: int,
    mean: bool,
    storage: torch.dtype,
) -> None:
    from training.kernels.lookup import FeaturePositions, gather

    ids = ids_of(rows, cardinalities, lengths, seed=1)
    weight = torch.from_numpy(np.random.default_rng(2).normal(size=(sum(cardinalities), dim))).to(storage)
    features = FeaturePositions.of(starts_of(cardinalities, device), lengths, mean)
    result = gather(weight.to(device), torch.from_numpy(ids).to(device), features, torch.float32)
    expected = pooled(weight.double().numpy(), ids, cardinalities, lengths, mean)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.cpu().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_gather_gives_the_dtype_of_the_computation(device: torch.device) -> None:
    """To within a spacing: the interpreter cuts what a GPU rounds to the nearest."""
    from training.kernels.lookup import FeaturePositions, gather

    weight = torch.linspace(-3, 3, 40, device=device).view(20, 2)
    features = FeaturePositions.of(starts_of([20], device), [], True)
    result = gather(weight, torch.arange(20, device=device).unsqueeze(1), features, torch.bfloat16)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result[:, 0].float(), weight, rtol=2**-7, atol=0)


@pytest.mark.parametrize("lengths", [[], [3]])
def test_gather_multiplies_codes_by_the_scales_of_their_rows(
    device: torch.device, lengths: list[int]
) -> None:
    from training.kernels.lookup import FeaturePositions, gather

    rng = np.random.default_rng(4)
    codes, scales = rng.integers(-127, 128, (18, 5)), rng.random(18)
    ids = ids_of(9, [7, 11], lengths, seed=5)
    features = FeaturePositions.of(starts_of([7, 11], device), lengths, True)
    arguments = (
        torch.from_numpy(codes).to(torch.int8).to(device),
        torch.from_numpy(ids).to(device),
        features,
    )
    result = gather(*arguments, torch.float32, scales=torch.from_numpy(scales).float().to(device))
    expected = pooled(codes * scales[:, None], ids, [7, 11], lengths, True)
    np.testing.assert_allclose(result.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)


def test_gather_writes_to_given_memory_only_if_it_fits(device: torch.device) -> None:
    from training.kernels.lookup import FeaturePositions, gather

    weight = torch.randn(10, 4, device=device)
    features = FeaturePositions.of(starts_of([10], device), [], True)
    ids = torch.arange(6, device=device).unsqueeze(1)
    memory = torch.full((6, 1, 4), torch.nan, device=device)
    result = gather(weight, ids, features, torch.float32, out=memory)
    assert result.data_ptr() == memory.data_ptr()
    assert torch.equal(memory[:, 0], weight[:6])
    for other in (ids[:5], ids.flip(0)):
        dtype = torch.float32 if len(other) == 5 else torch.float16
        result = gather(weight, other, features, dtype, out=memory)
        assert result.dtype == dtype
        assert len(result) == len(other)
        assert torch.equal(memory[:, 0], weight[:6])


def test_gather_of_more_ids_than_32_bits_can_count(device: torch.device) -> None:
    from training.kernels.lookup import FeaturePositions, gather

    rows, columns = 129, 2**24 + 1
    memory = mmap.mmap(-1, 4 * rows * columns)  # 8.7 GB of zeros, of which only two pages are written
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    ids = torch.from_numpy(np.frombuffer(memory, dtype=np.int32)).view(rows, columns)
    ids[1, 0], ids[rows - 1, 0] = 3, 4
    first_row, column = torch.tensor([0], device=device), torch.tensor([0], dtype=torch.int32, device=device)
    one_column = FeaturePositions(first_row, column, column + 1, lists_from=1, longest=1, mean=False)
    weight = torch.arange(5.0, device=device).view(5, 1)
    out = gather(weight, ids.to(device), one_column, torch.float32)
    assert out.flatten().tolist() == [0, 3, *[0] * (rows - 3), 4]


# The calls that launch kernels, and the kernels that each of them launches.
ROW, ONE = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1)
LAUNCHES: list[tuple[Callable[[], object], set[str]]] = [
    (lambda: kernels.look_up(ONE, ROW[:, None], ROW, [], False), {"lookup._gather"}),
    (
        lambda: kernels.update(ONE, None, ROW, ONE, 1.0, seed=0, step=0),
        {"row_update._add_up", "row_update._finish"},
    ),
    (lambda: kernels.take(ONE, ONE, 1, ROW), {"tiered_rows._move"}),
    (lambda: kernels.put(ONE, ONE, 1, ROW, ONE), {"tiered_rows._move"}),
    (
        lambda: (
            kernels.interact(ONE.clone().requires_grad_(), torch.zeros(1, 2, 1, requires_grad=True))
            .sum()
            .backward()
        ),
        {"interaction._forward", "interaction._backward"},
    ),
    (
        lambda: import_module("training.kernels.pool_rows").write_rows(
            *(torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int32), ROW, ROW),
            *(ONE, ONE, ROW, BLOCK_ROWS),
        ),
        {"pool_rows._write_rows"},
    ),
]


@pytest.mark.parametrize("call, launched", LAUNCHES)
@pytest.mark.usefixtures("device")  # modules with kernels are imported for the interpreter
def test_kernels_are_launched_on_the_device_of_their_tensors(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], launched: set[str]
) -> None:
    current: list[torch.device] = []
    seen = set()

    @contextmanager
    def on(tensor: Tensor) -> Iterator[None]:
        current.append(tensor.device)
        yield
        current.pop()

    class Launched:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert current == [torch.device("cpu")]
            seen.add(self.name)
            return lambda *_, **__: None

    for name in {kernel for _, of_call in LAUNCHES for kernel in of_call}:
        module, _, kernel = name.partition(".")
        monkeypatch.setattr(f"training.kernels.{module}.{kernel}", Launched(name))
        monkeypatch.setattr(f"training.kernels.{module}.on_device_of", on)
    call()
    assert seen == launched


def test_the_gpu_of_a_tensor_becomes_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: ("current", device))
    second = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 1))
    assert on_device_of(second) == ("current", torch.device("cuda", 1))  # type: ignore[comparison-overlap,arg-type]
    with on_device_of(torch.zeros(1)):  # has no effect
        pass


def interacted(vectors: Floats, first: bool) -> Floats:
    """One pair at a time."""
    count = vectors.shape[1]
    dots = [np.sum(vectors[:, i] * vectors[:, j], axis=1) for i in range(count) for j in range(i)]
    copied = list(vectors[:, 0].T) if first else []
    return np.stack([*copied, *dots], axis=1)


@pytest.mark.parametrize(
    "rows, features, dim, first",
    [
        (3, 4, 5, True),
        (1, 1, 16, True),
        (2, 26, 3, True),
        (5, 2, 1, False),
        (2, 17, 130, False),
        (0, 3, 4, True),
    ],
)
def test_interaction_forward_and_backward(
    device: torch.device, rows: int, features: int, dim: int, first: bool
) -> None:
    from training.kernels.interaction import interact

    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(rows, features + first, dim))
    bottom, embedded = (tensor_on(device, values) for values in (vectors[:, 0], vectors[:, int(first) :]))
    out = interact(bottom if first else None, embedded)
    expected = interacted(vectors, first)
    width = expected.shape[1]
    assert out.shape == (rows, -(-width // 4) * 4)  # 16 bytes
    np.testing.assert_allclose(out[:, :width].detach().cpu().numpy(), expected, rtol=1e-4, atol=1e-4)
    assert not out[:, width:].any()

    gradient = rng.normal(size=out.shape)  # those of the zeros have no effect
    out.backward(torch.from_numpy(gradient).float().to(device))
    of_vectors = np.zeros_like(vectors)
    place = dim if first else 0
    for i in range(features + first):
        for j in range(i):
            of_vectors[:, i] += gradient[:, place : place + 1] * vectors[:, j]
            of_vectors[:, j] += gradient[:, place : place + 1] * vectors[:, i]
            place += 1
    if first:
        of_vectors[:, 0] += gradient[:, :dim]
        assert bottom.grad is not None
        np.testing.assert_allclose(bottom.grad.cpu().numpy(), of_vectors[:, 0], rtol=1e-4, atol=1e-4)
    assert embedded.grad is not None
    np.testing.assert_allclose(embedded.grad.cpu().numpy(), of_vectors[:, int(first) :], rtol=1e-4, atol=1e-4)


def tensor_on(device: torch.device, values: Floats) -> Tensor:
    return torch.from_numpy(values).float().to(device).requires_grad_()


ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton interprets no product of bf16")


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=ON_A_GPU)])
def test_interaction_in_16_bits_keeps_sums_in_32(device: torch.device, dtype: torch.dtype) -> None:
    from training.kernels.interaction import interact

    vectors = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    result = interact(vectors[:, 0].to(device), vectors[:, 1:].to(device))
    assert result.dtype == dtype
    expected = torch.from_numpy(interacted(vectors.double().numpy(), True)).to(dtype)
    assert expected.shape[1] == 74
    assert result.shape[1] == 80
    spacing = torch.finfo(dtype).eps
    torch.testing.assert_close(result[:, :74].cpu(), expected, rtol=spacing, atol=spacing)
    assert not result[:, 74:].any()


def updated(
    weight: Floats, accumulator: Floats | None, rows: NDArray[np.int64], values: Floats, rate: float
) -> None:
    """In place: the formula of training/optimizers/updates.py, or SGD, one row at a time."""
    for row in sorted(set(rows.tolist()) - {-1}):
        gradient = values[rows == row].sum(axis=0)
        scale = rate
        if accumulator is not None:
            accumulator[row] += np.mean(gradient**2)
            scale /= np.sqrt(accumulator[row]) + 1e-8
        weight[row] -= scale * gradient


ROWS = {
    "repeats": [3, 1, 3, 0, 3, 9, 1, 3],
    "one": [4],
    "none": [],
    "all equal, over many chunks": [7] * 61,
    "runs that end at borders": [0] * 4 + [1] * 8 + [2] * 3 + [3] * 5 + [9] * 4,
    "padding": [-1] * 9 + [2, 2, -1, 5, 2] + [-1],
    "padding alone": [-1] * 6,
    "at random": np.random.default_rng(5).integers(-1, 10, 70).tolist(),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("adagrad", [True, False])
def test_update_of_rows(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, rows: list[int], adagrad: bool
) -> None:
    from training.kernels import row_update

    monkeypatch.setattr(row_update, "_CHUNK", 4)  # so that few lookups cross many borders
    monkeypatch.setattr(row_update, "_PARTS", 2)
    rng = np.random.default_rng(6)
    shuffled = rng.permutation(np.array(rows, dtype=np.int64))
    weight, accumulator, values = (
        rng.normal(size=(10, 5)),
        rng.random(10),
        rng.normal(size=(len(shuffled), 5)),
    )
    mine = torch.from_numpy(weight).float().to(device)
    sums = torch.from_numpy(accumulator).float().to(device)
    for _ in range(2):
        row_update.update_rows(
            mine,
            sums if adagrad else None,
            torch.from_numpy(shuffled).to(device),
            torch.from_numpy(values).float().to(device),
            0.3,
        )
        updated(weight, accumulator if adagrad else None, shuffled, values, 0.3)
    np.testing.assert_allclose(mine.cpu().numpy(), weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sums.cpu().numpy(), accumulator, rtol=1e-4)


@pytest.mark.parametrize("dim", [1, 300, 1500])
def test_update_of_rows_of_any_width(device: torch.device, dim: int) -> None:
    from training.kernels.row_update import update_rows

    rng = np.random.default_rng(8)
    rows = rng.integers(0, 3, 150)
    weight, values, accumulator = rng.normal(size=(3, dim)), rng.normal(size=(150, dim)), np.zeros(3)
    mine = torch.from_numpy(weight).float().to(device)
    sums = torch.zeros(3, device=device)
    update_rows(mine, sums, *(torch.from_numpy(it).to(device) for it in (rows, values)), 0.1)
    updated(weight, accumulator, rows, values, 0.1)
    np.testing.assert_allclose(mine.cpu().numpy(), weight, rtol=1e-4, atol=1e-4)


def test_update_through_sources_and_weights(device: torch.device) -> None:
    """Lists need this: the gradient of a pooled vector goes to the ids of its list, times a factor."""
    from training.kernels.row_update import update_rows

    rng = np.random.default_rng(9)
    weight, gradient = rng.normal(size=(8, 4)), rng.normal(size=(6, 4))
    rows, sources, scales = rng.integers(0, 8, 40), rng.integers(0, 6, 40), rng.random(40)
    mine = torch.from_numpy(weight).float().to(device)
    update_rows(
        mine,
        None,
        torch.from_numpy(rows).to(device),
        torch.from_numpy(gradient).float().to(device),
        0.5,
        sources=torch.from_numpy(sources).to(device),
        scales=torch.from_numpy(scales).float().to(device),
    )
    updated(weight, None, rows, gradient[sources] * scales[:, None], 0.5)
    np.testing.assert_allclose(mine.cpu().numpy(), weight, rtol=1e-4, atol=1e-5)


def philox(step: int, row: int, place: int, seed: int) -> int:
    """The first of the four words of Philox-4x32-10 (Salmon et al. 2011, section 3.3)."""
    low = 2**32 - 1
    c, k = [place, row & low, row >> 32, step & low], [seed & low, seed >> 32]
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(second >> 32) ^ c[1] ^ k[0], second & low, (first >> 32) ^ c[3] ^ k[1], first & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c[0]


def test_our_philox_is_the_published_one() -> None:
    """Known answers of the authors' Random123 library for counter and key all zeros, and all ones."""
    ones = 2**32 - 1
    assert philox(0, 0, 0, 0) == 0x6627E8D5
    assert philox(ones, ones << 32 | ones, ones, 2**64 - 1) == 0x408F276D


@pytest.mark.parametrize("storage, mantissa, lowest", [(torch.bfloat16, 7, -119), (torch.float16, 10, -14)])
def test_16_bit_weights_are_rounded_stochastically(
    device: torch.device, storage: torch.dtype, mantissa: int, lowest: int
) -> None:
    from training.kernels.row_update import update_rows

    seed, step, rate = 2**40 + 7, 11, 1.0
    rng = np.random.default_rng(10)
    weight = torch.from_numpy(rng.normal(size=(6, 9)) * 10.0 ** rng.integers(-6, 3, (6, 1))).to(storage)
    rows = torch.tensor([0, 5, 2, 3, 4])
    values = torch.from_numpy(rng.normal(size=(5, 9)) * 1e-3).float()
    mine = weight.to(device, copy=True)
    update_rows(mine, None, rows.to(device), values.to(device), rate, seed=seed, step=step)
    assert torch.equal(mine[1].cpu(), weight[1])  # not touched
    for row, change in zip(rows.tolist(), values.numpy(), strict=True):
        exact = weight[row].float().numpy() - change
        uniform = np.array([(philox(step, row, place, seed) >> 8) / 2**24 for place in range(9)], np.float32)
        exponent = np.maximum(np.frexp(exact)[1] - 1, lowest)
        spacing = np.ldexp(np.float32(1), exponent - mantissa).astype(np.float32)
        expected = np.floor(exact / spacing + uniform) * spacing
        assert mine[row].float().cpu().tolist() == expected.tolist()


def test_rounding_is_right_on_average_where_the_nearest_number_never_is(device: torch.device) -> None:
    from training.kernels.row_update import update_rows

    weight = torch.ones(64, 32, dtype=torch.bfloat16, device=device)
    rows = torch.arange(64, device=device)
    update_rows(weight, None, rows, torch.full((64, 32), -(2.0**-10), device=device), 1.0, seed=1)
    assert set(weight.flatten().tolist()) == {1.0, 1 + 2**-7}  # an eighth of them up; half up: none
    assert weight.double().mean().item() - 1 == pytest.approx(2**-10, rel=0.25)


def test_the_update_is_deterministic(device: torch.device) -> None:
    from training.kernels.row_update import update_rows

    rng = np.random.default_rng(12)
    rows = torch.from_numpy(rng.integers(0, 3, 80)).to(device)
    values = torch.from_numpy(rng.normal(size=(80, 4))).float().to(device)

    def run() -> tuple[Any, Any]:
        weight, sums = torch.zeros(3, 4, device=device), torch.zeros(3, device=device)
        update_rows(weight, sums, rows, values, 0.1)
        return weight.tolist(), sums.tolist()

    assert run() == run()
