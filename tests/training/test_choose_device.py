"""The choice of a device, with a number of GPUs that torch reports to see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.errors import ConfigError
from training.data.batch import Transfer
from training.device import choose_device, side_stream


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


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """The devices for which streams are created."""
    created: list[torch.device] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            created.append(device)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    side_stream.cache_clear()
    yield created
    side_stream.cache_clear()


def test_a_process_has_one_stream_for_each_gpu_and_purpose(streams: list[torch.device]) -> None:
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert side_stream(torch.device("cpu"), "loader") is None
    for _ in range(2):
        transfers = [Transfer(device)._stream for device in (first, second)]
        assert transfers == [side_stream(first, "loader"), side_stream(second, "loader")]
    assert streams == [first, second]
    assert side_stream(first, "scoring") is not side_stream(first, "loader")


def test_no_other_code_creates_streams() -> None:
    root = Path(__file__).parents[2]
    files = [
        path for folder in ("device", "etl", "scoring", "training") for path in (root / folder).rglob("*.py")
    ]
    creates = {
        str(path.relative_to(root)) for path in files if "torch.cuda.Stream(" in path.read_text("utf-8")
    }
    assert creates == {"training/device.py"}
