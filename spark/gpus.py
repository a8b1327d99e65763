"""Counts the GPUs of this machine, and finds the GPU of the running Spark task, without torch."""

from __future__ import annotations

import os
import sys
from itertools import takewhile
from pathlib import Path


def gpus_of_machine() -> int:
    """Returns the number of NVIDIA's GPUs that processes of this machine may use."""
    devices = len([*Path("/dev").glob("nvidia[0-9]*")])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return devices
    # CUDA ignores the first index that is not valid, and all that follow it.
    return min(devices, len([*takewhile(lambda name: name.strip() not in ("", "-1"), visible.split(","))]))


def slot_of_task() -> tuple[int | None, int] | None:
    """Returns the index of the GPU and the number of CPU cores that Spark assigned to the running task.

    The index is None if the task has no GPU. The result is None if no task of Spark runs in this thread.
    """
    if "pyspark.taskcontext" not in sys.modules:  # Spark's workers have already imported pyspark
        return None
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return None
    gpu = task.resources().get("gpu")
    return (int(gpu.addresses[0]) if gpu else None), task.cpus()
