"""A function that a worker process of this machine runs. Such a process has no pandas."""

from __future__ import annotations

import json

import torch

from device.columns import DeviceColumns
from etl.text import gpu_tasks
from etl.text.gpu_tasks import GpuTasks
from etl.text.parse_block import FileLayout, columns_to_parse, read_split


def count_lines(layout: FileLayout, index: int) -> str:
    """Runs in a worker: scans the files of a log on torch's CPU, and returns the lines of each block."""
    gpu_tasks.device_of_gpu = lambda gpu: torch.device("cpu")
    splits = layout.reader.splits()

    def lines_of(task: int, on_device: FileLayout) -> list[int]:
        blocks = [*read_split(splits[task], on_device, columns_to_parse(layout, []))]
        assert all(isinstance(block.columns, DeviceColumns) for block in blocks)
        return [block.lines for block in blocks]

    tasks = GpuTasks((range(len(splits)),), threads=2)
    return json.dumps([*tasks.run(index, layout, lines_of)])
