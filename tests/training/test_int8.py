"""Embedding tables as bytes: the codes and vectors NumPy computes, within half a scale of what was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.architectures import VARIANTS, variant
from tests.training.feature_rows import make_spec
from training.checkpoints import load_model, save_model
from training.embeddings.scoring_tables import Int8Embedding, quantise, to_int8
from training.embeddings.table import StackedEmbedding, tables_of
from training.models import build_model

CPU = torch.device("cpu")
SPEC = make_spec(2, [9, 5, 70])


def by_numpy(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scales = (np.abs(rows).max(axis=1) / np.float32(127)).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(1))[:, None]
    return np.clip(np.rint(rows / divisors), -127, 127).astype(np.int8), scales


@pytest.fixture
def rows() -> np.ndarray:
    """Rows of all sizes: of zeros, with one large number, near the smallest there are."""
    draw = np.random.default_rng(4)
    rows = draw.normal(size=(300, 16)) * 10.0 ** draw.integers(-6, 6, (300, 1))
    rows[7], rows[8, 3], rows[9] = 0.0, 1e6, 1e-40
    return rows.astype(np.float32)


def test_codes_and_scales_are_those_of_numpy_and_lose_half_a_scale_at_most(rows: np.ndarray) -> None:
    codes, scales = (tensor.numpy() for tensor in quantise(torch.from_numpy(rows)))
    expected_codes, expected_scales = by_numpy(rows)
    assert codes.dtype == np.int8
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(codes, expected_codes)
    moved = np.abs(codes * scales[:, None].astype(np.float64) - rows)
    assert (moved <= scales[:, None] * (0.5 + 1e-4) + 1e-44).all()
    assert (codes[7] == 0).all()


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
def test_vectors_are_those_numpy_looks_up(pooling: Any, storage: torch.dtype) -> None:
    table = StackedEmbedding([6, 9, 5], 16, [3], pooling, storage)
    table.init_normal(0.3)
    stored = table.weight.float().numpy()
    codes, scales = by_numpy(stored)
    read = codes * scales[:, None]
    ids = torch.tensor([[1, 8, 2, 0, 4], [0, 0, 0, 0, 0], [5, 3, 4, 4, 3]])
    vectors = Int8Embedding(table).eval()(ids).numpy()
    first_row = (0, 6, 15)
    for row, (one, two, *listed) in enumerate(ids.tolist()):
        held = [read[first_row[2] + id_] for id_ in listed if id_]
        summed = sum(held, np.zeros(16, np.float32))
        expected = [
            read[one],
            read[first_row[1] + two],
            summed / (len(held) or 1) if pooling == "mean" else summed,
        ]
        np.testing.assert_allclose(vectors[row], expected, rtol=1e-6, atol=1e-7)
    assert not np.allclose(read, stored, atol=1e-6)


def with_weights(name: str, seed: int = 3) -> torch.nn.Module:
    model = build_model(variant(name), SPEC).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    return model


@pytest.mark.parametrize("name", VARIANTS)
def test_a_converted_model_is_the_model_with_rounded_rows(name: str, tmp_path: Path) -> None:
    """Of every architecture: the logits of one whose float32 tables hold what NumPy's codes stand for."""
    model = with_weights(name)
    config = variant(name)
    description = {"version": "m1", "architecture": config.architecture, "model": config.model_dump()}
    save_model(str(tmp_path), model, {**description, "feature_spec": SPEC.to_json()})
    loaded = load_model(str(tmp_path), CPU, "int8").model
    wide = [table for table in tables_of(model).values() if table.weight.shape[1] > 1]
    converted = [module for module in loaded.modules() if isinstance(module, Int8Embedding)]
    assert len(converted) == len(wide)
    for table in wide:
        codes, scales = by_numpy(table.weight.numpy())
        with torch.no_grad():
            table.weight.copy_(torch.from_numpy(codes * scales[:, None]))
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(40, 2, generator=generator)
    ids = torch.stack(
        [torch.randint(cardinality, (40,), generator=generator) for cardinality in SPEC.cardinalities], dim=1
    )
    with torch.inference_mode():
        torch.testing.assert_close(loaded(dense, ids), model(dense, ids), rtol=1e-5, atol=1e-5)
        stored = load_model(str(tmp_path), CPU).model(dense, ids)
    assert bool(wide) == (not torch.equal(loaded(dense, ids), stored))


def test_a_table_of_rows_that_would_not_shrink_stays() -> None:
    model: Any = torch.nn.Module()
    model.narrow, model.half = StackedEmbedding([5], 1), StackedEmbedding([5], 4, storage=torch.float16)
    model.large = StackedEmbedding([5], 2)
    assert to_int8(model) == 1
    kinds = {name: type(module).__name__ for name, module in model.named_children()}
    assert kinds == {"narrow": "StackedEmbedding", "half": "StackedEmbedding", "large": "Int8Embedding"}
    assert (model.large.weight.dtype, model.large.scales.shape) == (torch.int8, (5,))
