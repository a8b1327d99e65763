"""Runs tasks of the scan pass and of the encode pass in processes that each use one GPU.

Such a process runs a group of tasks in threads. One task at a time scans its text on the GPU. Meanwhile, the
other tasks read files, apply rules to distinct values, and write Parquet. So one process per GPU is enough to
use several processor cores. Without GPUs, a process runs one task at a time, with the compiled scanner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from etl.native.scan import Scanned, SplitLines, rejections_of, scan
from etl.readers.base import map_in_threads
from etl.readers.text import TextReader
from etl.text.parse_block import FileLayout
from spark.workers import Workers, are_cancelled, slot_of_task

if TYPE_CHECKING:  # only processes with a GPU import torch
    import torch

log = logging.getLogger("nightrank.etl")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class GpuTasks:
    """Groups of tasks. A process with a GPU runs one group.

    Attributes:
        groups: for each group, the indices of its tasks, in ascending order.
        threads: number of threads of a process if Spark does not run the tasks. Under Spark, a process has as
            many threads as its task has cores.
    """

    groups: tuple[range, ...]
    threads: int

    def run(
        self, group: int, layout: FileLayout, function: Callable[[int, FileLayout], _Result]
    ) -> Iterator[_Result]:
        """Runs the tasks of a group in this process. Yields their results in the order of the tasks.

        Args:
            group: index of the group in `groups`.
            layout: the layout of the log.
            function: function that runs a task. Its arguments are the index of the task and the layout that
                reads text on the GPU.
        """
        gpu, threads = slot_of_task() or (group, self.threads)
        device = device_of_gpu(gpu)

        def run_task(task: int) -> _Result:
            with _current(device):  # the current GPU is a setting of each thread
                return function(task, on_device)

        on_device = layout if device is None else scanned_on(layout, device)
        try:
            # This thread only waits for the other threads.
            yield from map_in_threads(_needed(self.groups[group]), run_task, threads + 1)
        finally:
            _free_memory(device)


def _needed(tasks: range) -> Iterator[int]:
    """Yields the tasks. Raises CancelledError when the results of the tasks are no longer needed."""
    for task in tasks:
        if are_cancelled():
            raise CancelledError(f"the tasks from {task} on were cancelled")
        yield task


def gpu_tasks(workers: Workers, layout: FileLayout, tasks: int) -> GpuTasks | None:
    """Divides tasks among the GPUs. Returns None if the compiled scanner reads all text on CPUs.

    Args:
        workers: the processes that run the tasks.
        layout: the layout of the log. Only text without nested fields (`tsv`, `csv`) is scanned on GPUs.
        tasks: number of tasks to divide.
    """
    if layout.device == "cpu" or not isinstance(layout.reader, TextReader):
        return None
    groups = tuple(workers.gpu_groups(tasks))
    if not groups:
        log.warning("workflow.device=%s: no task has a GPU of its own, so CPUs scan the log", layout.device)
        return None
    return GpuTasks(groups, max(1, workers.parallelism // len(groups)))


def scanned_on(layout: FileLayout, device: torch.device) -> FileLayout:
    """Returns a copy of the layout with which a device scans the files of text formats."""
    if not isinstance(layout.reader, TextReader):
        return layout
    return replace(layout, reader=replace(layout.reader, scanner=DeviceScan(device)))


class DeviceScan:
    """A scanner with the interface and the results of `etl.native.scan.scan`.

    The host scans blocks that the device cannot scan. Threads may share the scanner. It scans one block at a
    time, so the device needs temporary memory for only one block.

    Args:
        device: torch's device of a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._one_block = device, threading.Lock()

    def __call__(
        self,
        block: bytes | memoryview,
        separator: str,
        width: int,
        fields: Sequence[int],
        quoted: bool,
        split_lines: SplitLines,
    ) -> Scanned:
        """Scans a block. The arguments and errors are those of `scan`."""
        import torch

        from device import text_scan

        try:
            with self._one_block:
                scanned = text_scan.scan_text(block, separator, width, fields, quoted, self._device)
        except torch.OutOfMemoryError as error:
            log.warning(
                "the GPU has too little memory to scan a block of %d bytes, so a CPU scans it: %s",
                len(block),
                error,
            )
            scanned = None
        if scanned is None:
            return scan(block, separator, width, fields, quoted, split_lines)
        broken = rejections_of(scanned.broken.items())
        return Scanned(scanned.lines, scanned.row_lines, scanned.columns, scanned.counts, broken, unsplit={})


def device_of_gpu(gpu: int | None) -> torch.device | None:
    """Returns torch's device of a GPU; None if torch does not find it."""
    import torch

    if gpu is None or gpu >= torch.cuda.device_count():
        log.warning("torch finds no GPU %s in this process, so CPUs scan the log", gpu)
        return None
    return torch.device("cuda", gpu)


def _current(device: torch.device | None) -> AbstractContextManager[object]:
    import torch

    return torch.cuda.device(device) if device is not None and device.type == "cuda" else nullcontext()


def _free_memory(device: torch.device | None) -> None:
    """Releases the GPU memory that torch keeps, because another process may run the next group of tasks."""
    import torch

    if device is not None and device.type == "cuda":
        torch.cuda.empty_cache()
