"""Reads and checks the settings of architectures (training/architecture_settings), without torch.

`check_settings.py` refuses settings that an architecture does not have. `architectures.py` makes the type of
the section `model`.
"""

from training.settings.check_settings import (
    check_loss,
    check_model,
    check_retriever,
    complete,
    known_architectures,
    read_settings,
    training_digests,
    with_item,
)
from training.settings.field_types import Features

__all__ = [
    "Features",
    "check_loss",
    "check_model",
    "check_retriever",
    "complete",
    "known_architectures",
    "read_settings",
    "training_digests",
    "with_item",
]
