"""Operators of torch's own made of our functions, so that torch.compile takes them as they are, without looking inside.

torch.library.custom_op would do, but what it makes imports torch's compiler at its first call, which takes each rank, and each
worker that scores, seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

_LIBRARY = torch.library.Library("nightrank", "FRAGMENT")


def operator(schema: str, shapes: Callable[..., Any]) -> Callable[[Callable[..., Any]], OpOverload]:
    """A decorator: the function, which changes none of its arguments and returns none of them, as an operator on any device.

    Args:
        schema: as torch writes it: "name(Tensor first, ScalarType dtype) -> Tensor".
        shapes: takes the same arguments and returns tensors of the results' shapes and dtypes, with nothing in them.
    """

    def register(function: Callable[..., Any]) -> OpOverload:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"nightrank::{name}", shapes, lib=_LIBRARY)
        made: OpOverload = getattr(torch.ops.nightrank, name).default
        return made

    return register


def differentiable(made: OpOverload, gradient: Callable[..., Any], keep: Callable[..., None]) -> None:
    """Gives an operator its gradient.

    Args:
        gradient: (context, gradient of the result) → that of each argument.
        keep: (context, arguments, result): saves in the context what `gradient` needs.
    """
    torch.library.register_autograd(made, gradient, setup_context=keep, lib=_LIBRARY)
