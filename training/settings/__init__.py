"""Reads and checks the settings of architectures (training/architecture_settings), without torch.

`check_settings.py` refuses settings that an architecture does not have, and creates the pydantic type that
parses the section `model`. `shared_settings.py` has the settings that several architectures share.
"""

from training.settings.check_settings import (
    check_loss,
    check_model,
    check_retriever,
    complete,
    known_architectures,
    read_settings,
    reads_scopes,
    training_digests,
    with_item,
)
from training.settings.shared_settings import Features

__all__ = [
    "Features",
    "check_loss",
    "check_model",
    "check_retriever",
    "complete",
    "known_architectures",
    "read_settings",
    "reads_scopes",
    "training_digests",
    "with_item",
]
