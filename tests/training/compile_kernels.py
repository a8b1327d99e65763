"""Compiles every kernel for compute capability 9.0 with the shapes of DLRM on Criteo, and prints its name.

It needs no GPU.

It is a script, because a process that imported a kernel for the interpreter cannot compile it any more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from training.kernels import interaction, lookup, row_update
from training.kernels.rounding import grid_of

mantissa, lowest = grid_of(torch.bfloat16)
PAIRS = {"FIRST": 1, "VECTORS": 27, "DIM": 128, "BLOCK": 32, "BLOCK_DIM": 128, "PRECISION": "tf32"}
STEP = {"DIM": 128, "ADAGRAD": True, "MANTISSA": mantissa, "LOWEST": lowest, "BLOCK": 128, "CHUNK": 32}
TABLE = {
    "weight": "*bf16",
    "accumulator": "*fp32",
    "rate": "fp32",
    "epsilon": "fp32",
    "seed": "i64",
    "step": "i64",
}
VECTORS = {"bottom": "*bf16", "embedded": "*fp32"}

KERNELS: list[tuple[Any, dict[str, str], dict[str, Any], int]] = [
    (
        lookup._gather,
        {
            "weight": "*bf16",
            "ids": "*i64",
            "first_row": "*i64",
            "column": "*i32",
            "width": "*i32",
            "out": "*fp32",
            "vectors": "i32",
            "columns": "i32",
            "num_features": "i32",
            "lists_from": "i32",
        },
        {"PAD": 0, "DIM": 128, "LONGEST": 4, "MEAN": True, "BLOCK": 32, "BLOCK_DIM": 128},
        4,
    ),
    (interaction._forward, {**VECTORS, "out": "*bf16", "width": "i32"}, PAIRS, 4),
    (
        interaction._backward,
        {
            **VECTORS,
            "gradient": "*bf16",
            "bottom_gradient": "*bf16",
            "embedded_gradient": "*fp32",
            "width": "i32",
        },
        PAIRS,
        4,
    ),
    (
        row_update._add_up,
        {
            "rows": "*i32",
            "origin": "*i64",
            "gradient": "*bf16",
            "scales": "*fp32",
            "parts": "*fp32",
            "lookups": "i32",
            **TABLE,
        },
        {**STEP, "SCALED": True},
        1,
    ),
    (
        row_update._finish,
        {"rows": "*i32", "parts": "*fp32", "lookups": "i32", **TABLE},
        {**STEP, "PARTS": 16},
        1,
    ),
    (
        row_update._add_up,  # of a linear part's weights: one number a row, plain SGD
        {
            "rows": "*i64",
            "origin": "*i64",
            "gradient": "*fp32",
            "scales": "*fp32",
            "parts": "*fp32",
            "lookups": "i32",
            **TABLE,
            "weight": "*fp32",
        },
        {
            "SCALED": False,
            "DIM": 1,
            "ADAGRAD": False,
            "MANTISSA": 0,
            "LOWEST": 0,
            "BLOCK": 1,
            "CHUNK": 32,
        },
        1,
    ),
]

for kernel, signature, constants, warps in KERNELS:
    source = ASTSource(
        kernel, signature={**signature, **dict.fromkeys(constants, "constexpr")}, constexprs=constants
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert compiled.asm["cubin"]
    print(kernel.__name__)
