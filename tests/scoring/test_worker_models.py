"""Which models a Python worker keeps loaded from one task to the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scoring.model import predictor as predictor_module
from scoring.model.predictor import Predictor, WorkerModels, models_of_process
from scoring.ranking.recommender import load_recommender
from scoring.requests import ListRequest, ModelRequest
from tests.scoring.reference_scores import ReferenceScores, write_model


def test_a_predictor_is_loaded_once_and_the_latest_two_are_kept(tmp_path: Path) -> None:
    requests = [
        ModelRequest(write_model(tmp_path / name, version=name), "cpu", 8) for name in ("m1", "m2", "m3")
    ]
    models = WorkerModels()
    first, second = (models.predictor(request, None, 1) for request in requests[:2])
    assert [first.version, second.version] == ["m1", "m2"]
    assert models.predictor(requests[0], None, 1) is first
    assert models.predictor(requests[1], None, 1) is second
    models.predictor(requests[2], None, 1)  # takes the place of m1, which was used longest ago
    assert models.predictor(requests[1], None, 1) is second
    assert models.predictor(requests[0], None, 1) is not first


def test_the_number_of_threads_and_the_settings_are_part_of_the_key(reference: ReferenceScores) -> None:
    models, request = WorkerModels(), reference.request.model
    predictor = models.predictor(request, None, 1)
    assert models.predictor(request, None, 2) is not predictor
    assert models.predictor(replace(request, embeddings="int8"), None, 1) is not predictor


@pytest.mark.parametrize("gpu", [None, 0, 1])
def test_a_model_is_loaded_onto_the_gpu_that_spark_assigned_to_the_task(
    reference: ReferenceScores, monkeypatch: pytest.MonkeyPatch, gpu: int | None
) -> None:
    chosen = []

    def choose(*wanted: object) -> torch.device:
        chosen.append(wanted)
        return torch.device("cpu")

    monkeypatch.setattr(predictor_module, "choose_device", choose)
    request = replace(reference.request, model=replace(reference.request.model, device="cuda"))
    WorkerModels().predictor(request.model, gpu, 1)
    WorkerModels().latest(load_recommender, request, gpu, 1)
    assert chosen == [("cuda", gpu, "score.device")] * 2


def test_one_result_of_each_loader_is_kept(reference: ReferenceScores) -> None:
    models, calls = WorkerModels(), []

    def load_version(request: ListRequest, predictor: Predictor) -> str:
        calls.append(request.k)
        return f"{predictor.version} k={request.k}"

    recommender = models.latest(load_recommender, reference.request, None, 1)
    assert models.latest(load_version, reference.request, None, 1) == "m1 k=5"
    assert models.latest(load_recommender, reference.request, None, 1) is recommender
    assert recommender.predictor is models.predictor(reference.request.model, None, 1)
    other = replace(reference.request, k=2)
    for request in (reference.request, other, other, reference.request):
        models.latest(load_version, request, None, 1)
    assert calls == [5, 2, 5]


def test_tasks_of_one_process_share_their_models() -> None:
    assert models_of_process() is models_of_process()
    assert models_of_process() is not WorkerModels()
