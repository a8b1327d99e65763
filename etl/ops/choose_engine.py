"""Chooses the engine: Spark expressions (`sql`) or Arrow batches in Python workers (`arrow`)."""

from __future__ import annotations

from typing import Literal

Engine = Literal["sql", "arrow"]


def choose_engine(
    accelerated: bool, wanted: Literal["auto", "sql", "arrow"], in_memory: bool = True
) -> Engine:
    """Returns the engine `wanted`, or chooses an engine if `wanted` is `auto`.

    `auto` chooses `sql` if Spark has the RAPIDS Accelerator (`accelerated`), which runs Spark expressions on
    GPUs. It also chooses `sql` if the tables of the workflow are too large for a Python worker (`in_memory`
    is false). Otherwise it chooses `arrow`, which is faster on CPUs.
    """
    if wanted != "auto":
        return wanted
    return "sql" if accelerated or not in_memory else "arrow"
