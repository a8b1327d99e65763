"""Registers functions as torch operators, so that torch.compile does not trace into them.

torch.library.custom_op has the same effect, but its operators import torch's compiler at their first call.
This import takes seconds on every rank and every scoring worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

_LIBRARY = torch.library.Library("nightrank", "FRAGMENT")


def operator(schema: str, shapes: Callable[..., Any]) -> Callable[[Callable[..., Any]], OpOverload]:
    """Returns a decorator that registers a function as an operator for any device.

    The function must not change its arguments or return them.

    Args:
        schema: the operator's signature in torch's format: "name(Tensor first, ScalarType dtype) -> Tensor".
        shapes: a function with the operator's arguments. It returns empty tensors with the shapes and dtypes
            of the operator's results.
    """

    def register(function: Callable[..., Any]) -> OpOverload:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"nightrank::{name}", shapes, lib=_LIBRARY)
        overload: OpOverload = getattr(torch.ops.nightrank, name).default
        return overload

    return register


def differentiable(overload: OpOverload, gradient: Callable[..., Any], save: Callable[..., None]) -> None:
    """Registers the gradient of an operator.

    Args:
        overload: the operator.
        gradient: a function of (context, gradient of the result) that returns the gradients of the arguments.
        save: a function of (context, arguments, result). It saves in the context the values that `gradient`
            needs.
    """
    torch.library.register_autograd(overload, gradient, setup_context=save, lib=_LIBRARY)
