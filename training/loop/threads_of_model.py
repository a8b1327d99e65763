"""Chooses the number of threads with which a model is trained or measured on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from training.device.threads import torch_threads
from training.embeddings.tables_of_model import tables_of

# A model with fewer weights outside its tables, such as a logistic regression, has no matrix products.
_FEW_WEIGHTS = 1024


@contextmanager
def threads_of_model(model: nn.Module) -> Iterator[None]:
    """Makes torch use one thread if the model has so few weights that more threads would not be faster.

    The steps of such a model are shorter than the time in which threads wait for one another, and its loader
    needs the other cores. benchmarks/run.py trains such a model.
    """
    tables = {id(table.weight) for table in tables_of(model).values()}
    weights = sum(weight.numel() for weight in model.parameters() if id(weight) not in tables)
    with torch_threads(1 if weights < _FEW_WEIGHTS else torch.get_num_threads()):
        yield
