"""A model without matrix products is trained and measured on one thread; the number before is set again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.architectures import small_spec, variant
from training.device import torch_threads
from training.loop.training_loop import threads_of_model
from training.models import build_model


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    with torch_threads(3):
        yield


@pytest.mark.parametrize(
    "name, changed, threads",
    [("logistic_regression", {}, 1), ("dlrm", {}, 1), ("dlrm", {"top_mlp": [64, 32]}, 3)],
)
def test_only_models_with_few_weights_use_one_thread(
    name: str, changed: dict[str, Any], threads: int
) -> None:
    model = build_model(variant(name, **changed), small_spec(name), seed=1)
    with threads_of_model(model):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


def test_the_number_before_is_set_again_after_an_error() -> None:
    def fail() -> None:
        with threads_of_model(nn.Linear(2, 2)):
            assert torch.get_num_threads() == 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == 3
