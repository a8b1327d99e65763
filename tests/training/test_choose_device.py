"""The choice of a device, with a number of GPUs that torch reports to see."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conf.errors import ConfigError
from training.device import choose_device


def test_auto_takes_a_gpu_where_torch_sees_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", 1, "train.device") == torch.device("cuda", 1)
    assert choose_device("cuda", None, "score.device") == torch.device("cuda", 0)
    assert choose_device("cpu", 5, "score.device") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto", 3, "train.device") == torch.device("cpu")


@pytest.mark.parametrize("setting", ["train.device", "score.device"])
def test_a_missing_gpu_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, setting: Any) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        ConfigError, match=rf"{setting}=auto: this process needs GPU 1, but torch finds 1 GPUs"
    ):
        choose_device("auto", 1, setting)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        ConfigError, match=rf"{setting}=cuda: this process needs GPU 0, but torch finds 0 GPUs"
    ):
        choose_device("cuda", None, setting)
