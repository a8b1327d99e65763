"""Compiles every kernel for GPUs of several generations, with the shapes of DLRM on Criteo.

Prints a line of JSON for each kernel and generation: registers per thread, bytes of a thread's stack (where
registers are stored if there are too few), and bytes of shared memory per program. It needs no GPU: Triton
contains the assembler, and a program that reads these numbers from its result.

It is a script, because a process that imported a kernel for the interpreter cannot compile it any more.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from training.data.sharding import BLOCK_ROWS
from training.kernels import interaction, lookup, pool_rows, row_update, tiered_rows
from training.kernels.row_update import grid_of

mantissa, lowest = grid_of(torch.bfloat16)
STEP = {
    "DIM": 128,
    "ADAGRAD": True,
    "NAMED": True,
    "MANTISSA": mantissa,
    "LOWEST": lowest,
    "BLOCK": 128,
    "CHUNK": row_update._CHUNK,
}
TABLE = {
    "weight": "*bf16",
    "accumulator": "*fp32",
    "tail": "*bf16",
    "tail_accumulator": "*fp32",
    "first_tail": "i64",
    "rate": "fp32",
    "epsilon": "fp32",
    "seed": "i64",
    "step": "i64",
}

# Compute capabilities of A100, H100 and H200, and B200.
CAPABILITIES = (80, 90, 100)
GATHERED = {
    "scales": "*fp32",
    "first_tail": "i64",
    "ids": "*i64",
    "first_row": "*i64",
    "column": "*i32",
    "width": "*i32",
    "vectors": "i32",
    "columns": "i32",
    "num_features": "i32",
    "lists_from": "i32",
}


def gathers() -> list[tuple[Any, dict[str, str], dict[str, Any], int]]:
    """The gather from tables of all widths, without lists and with short and long ones, as `gather` calls it."""
    shape = {"PAD": 0, "DIM": 128, "MEAN": True, "BLOCK_DIM": 128}
    return [
        (
            lookup._gather,
            {"weight": kind, "tail": kind, **GATHERED, "out": out},
            {
                **shape,
                "LONGEST": longest,
                "SCALED": kind == "*i8",
                "TIERED": tiered,
                "BLOCK": lookup.block_of(128, tiered=tiered),
            },
            4,
        )
        for kind in ("*bf16", "*fp32", "*i8")
        for out in ("*fp32", "*bf16")
        for longest in (1, 4, 50)
        for tiered in (False, True)
        if not (tiered and kind == "*i8")  # int8 is for scoring
    ]


def moves() -> list[tuple[Any, dict[str, str], dict[str, Any], int]]:
    """Reads and writes of rows in two memories: vectors of 128 numbers, and one number a row."""
    return [
        (
            tiered_rows._move,
            {"hot": kind, "tail": kind, "rows": "*i64", "values": kind, "count": "i32", "first_tail": "i64"},
            {"WRITES": writes, "DIM": dim, "BLOCK": 1024 // max(dim, 8), "BLOCK_DIM": dim},
            4,
        )
        for kind in ("*bf16", "*fp32", "*i32")
        for writes in (False, True)
        for dim in (1, 128)
    ]


def interactions() -> list[tuple[Any, dict[str, str], dict[str, Any], int]]:
    """The interaction in bf16 and fp16, in TF32 and in exact float32; of Criteo's 27 vectors, and of the most."""
    kernels = []
    kinds = {"*bf16": "*bf16", "*fp16": "*fp32", "*fp32": "*fp32"}  # of the results, and of the vectors
    for kind, precision in (("*bf16", "tf32"), ("*fp16", "tf32"), ("*fp32", "tf32"), ("*fp32", "ieee")):
        vectors = {"bottom": kind, "embedded": kinds[kind]}
        gradients = {"gradient": kind, "bottom_gradient": kind, "embedded_gradient": kinds[kind]}
        for count in (27, 64):
            program = interaction.program_of(count, 128, exact=precision == "ieee")
            warps = program.pop("num_warps")
            shape = {"FIRST": 1, "VECTORS": count, "DIM": 128, "PRECISION": precision, **program}
            kernels += [
                (interaction._forward, {**vectors, "out": kind, "width": "i32"}, shape, warps),
                (interaction._backward, {**vectors, **gradients, "width": "i32"}, shape, warps),
            ]
    return kernels


def updates() -> list[tuple[Any, dict[str, str], dict[str, Any], int]]:
    """The update of rows of 128 numbers in bf16 by row-wise Adagrad, in one memory and in two."""
    inputs = {"rows": "*i32", "names": "*i64", "parts": "*fp32", "lookups": "i32", **TABLE}
    sources = {"origin": "*i64", "gradient": "*bf16", "scales": "*fp32"}
    kernels = []
    for tiered in (False, True):
        step = {**STEP, "TIERED": tiered}
        kernels += [
            (row_update._add_up, {**inputs, **sources}, {**step, "SCALED": True}, 1),
            (row_update._finish, inputs, {**step, "PARTS": row_update._PARTS}, 1),
        ]
    return kernels


def pool_writers() -> list[tuple[Any, dict[str, str], dict[str, Any], int]]:
    """The writing of Criteo's rows to a pool, of rows with long lists, and of rows with few columns."""
    into = dict.fromkeys(("tiles", "targets", "labels", "dense", "ids"), "*i32")
    return [
        (
            pool_rows._write_rows,
            {"ranges": "*i64", **into, "weights": "*fp32"},
            {"DENSE": dense, "IDS": ids, "COLUMNS": pool_rows.tile_columns(dense, ids), "BLOCK": BLOCK_ROWS},
            pool_rows.WARPS,
        )
        for dense, ids in ((13, 26), (4, 230), (0, 3))
    ]


KERNELS: list[tuple[Any, dict[str, str], dict[str, Any], int]] = [
    *gathers(),
    *moves(),
    *interactions(),
    *updates(),
    *pool_writers(),
    (
        row_update._add_up,  # of a linear part's weights: one number a row, plain SGD
        {
            "rows": "*i64",
            "names": "*i64",
            "origin": "*i64",
            "gradient": "*fp32",
            "scales": "*fp32",
            "parts": "*fp32",
            "lookups": "i32",
            **TABLE,
            "weight": "*fp32",
            "tail": "*fp32",
        },
        {
            "SCALED": False,
            "DIM": 1,
            "ADAGRAD": False,
            "NAMED": False,
            "TIERED": False,
            "MANTISSA": 0,
            "LOWEST": 0,
            "BLOCK": 1,
            "CHUNK": row_update._CHUNK,
        },
        1,
    ),
]


def usage(cubin: bytes) -> dict[str, int]:
    """Registers and stack of a compiled kernel, as NVIDIA's tool reads them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    assert found is not None, done.stdout
    return {"registers": int(found[1]), "stack": int(found[2])}


for capability in CAPABILITIES:
    for kernel, signature, constants, warps in KERNELS:
        source = ASTSource(
            kernel, signature={**signature, **dict.fromkeys(constants, "constexpr")}, constexprs=constants
        )
        target = GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options={"num_warps": warps})
        facts = {"kernel": kernel.__name__, "capability": capability, "threads": 32 * warps}
        print(json.dumps({**facts, **usage(compiled.asm["cubin"]), "shared": compiled.metadata.shared}))
