"""The counts of benchmarks/gpu/roofline.py against torch's own count of operations, and against known bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.criteo_shapes import CARDINALITIES, NUM_DENSE, spec_of
from benchmarks.gpu.roofline import GPUS, Gpu, Network, Part, distinct_share, main, parts_of, samples_per_s
from conf.types import ModelConfig
from training.loop.forward import DensePart
from training.models import build_model

ROOT = Path(__file__).parents[2]
SETTINGS = yaml.safe_load((ROOT / "conf/models/dlrm_criteo.yaml").read_text())
NETWORK = Network.of(SETTINGS, len(CARDINALITIES), NUM_DENSE, storage=4)
BATCH = 8


def test_operations_of_the_mlps_are_those_that_torch_counts() -> None:
    model = build_model(ModelConfig.model_validate(SETTINGS), spec_of([3] * len(CARDINALITIES)))
    part = DensePart(model)  # type: ignore[arg-type]
    dense, vectors = torch.zeros(BATCH, NUM_DENSE), torch.zeros(BATCH, len(CARDINALITIES), NETWORK.dim)
    counted = FlopCounterMode(display=False)
    with counted:
        part(dense, vectors.requires_grad_()).sum().backward()
    products = counted.get_flop_counts()["Global"]
    of_layers = sum(
        count for operator, count in products.items() if "mm" in str(operator) and "bmm" not in str(operator)
    )
    parts = parts_of(NETWORK, BATCH, 1.0)
    assert of_layers / BATCH == parts["MLPs, forward"].flops + parts["MLPs, backward"].flops
    weights = sum(value.numel() for name, value in model.named_parameters() if "embedding" not in name)
    assert NETWORK.dense_weights == weights


def test_bytes_of_the_table_follow_its_storage_and_what_is_repeated() -> None:
    half = Network.of(SETTINGS, len(CARDINALITIES), NUM_DENSE, storage=2)
    mine, other = (parts_of(network, BATCH, 0.25) for network in (NETWORK, half))
    numbers = len(CARDINALITIES) * NETWORK.dim
    assert mine["gather"].bytes - other["gather"].bytes == 2 * numbers
    assert mine["update of rows"].bytes - other["update of rows"].bytes == pytest.approx(
        2 * 2 * numbers * 0.25
    )
    assert {name for name in mine if mine[name] != other[name]} == {"gather", "update of rows"}


def test_a_part_takes_the_longer_of_both_times() -> None:
    gpu = Gpu(bytes_per_s=100.0, flops_per_s=10.0)
    assert Part(200.0, 5.0).seconds(gpu) == 2.0
    assert Part(20.0, 5.0).seconds(gpu) == 0.5
    assert samples_per_s({"a": Part(200.0), "b": Part(0.0, 20.0)}, gpu) == 0.25


def test_the_distinct_share_is_that_of_a_batch() -> None:
    assert distinct_share(1_000, [3, 3]) == pytest.approx(2 / 2_000, abs=2e-3)
    assert distinct_share(50, CARDINALITIES) > distinct_share(2_000, CARDINALITIES)


@pytest.mark.processes
def test_the_script_ends_in_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["benchmark"] == "gpu_roofline"
    assert summary["predicted"] is True
    assert set(summary["ratios"]) == {"aim", "aim_at_published_share"}
    assert len(summary["ours"]["most_samples_per_s"]) == 2 * len(GPUS)
