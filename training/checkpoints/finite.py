"""Checks that all numbers are finite (not NaN or infinite) before a model or checkpoint is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from conf.errors import DataError
from training.checkpoints.tensor_file import CHUNK_BYTES


def require_finite(tensors: Mapping[str, Sequence[Tensor]], when: str) -> None:
    """Checks that all numbers in some tensors are finite.

    Args:
        tensors: maps the name of each tensor to the tensor's pieces. A piece is a tensor with some of the
            rows.
        when: the time of the check, for the error message, such as "after step 100".

    Raises:
        DataError: a tensor contains a number that is not finite.
    """
    for name, pieces in tensors.items():
        for piece in pieces:
            if not piece.is_floating_point():
                continue
            for chunk in piece.reshape(-1).split(CHUNK_BYTES // piece.element_size()):
                if not bool(torch.isfinite(chunk).all()):
                    raise DataError(
                        f"{when}, {name} contains numbers that are not finite; nothing was saved",
                        "lower train.learning_rate and train.embedding_learning_rate, and look for extreme "
                        "feature values",
                    )
