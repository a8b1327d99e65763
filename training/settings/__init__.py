"""The settings of the architectures, in modules that do not import torch.

Every job first checks the settings of the model, even a job that does not need torch.

`training/settings/<name>.py` defines the settings of `training/models/<name>.py`. It contains

    class Settings(Strict)                                  the keys of this architecture in a model's YAML
    check(settings: Settings, features: Features) -> None   optional: raises ConfigError if the settings do
                                                            not fit the features
    check_loss(settings: Settings, loss: str) -> None       optional: raises ConfigError if the settings do
                                                            not fit `train.loss`
    VECTORS = True                                          optional: the model is a VectorModel, so it can
                                                            be the model of the source `retrieval`, and losses
                                                            over item vectors can train it

`check_settings.py` refuses settings that an architecture does not have. `architectures.py` lists the modules.
An architecture may also define its Settings in its own module in training/models, without a file in this
folder. In this case, checking the settings imports torch. The same is true of an architecture of another
package. The package names its module by an entry point of the group `nightrank.models`.
"""

from training.settings.check_settings import (
    architecture_extension,
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
    "architecture_extension",
    "check_loss",
    "check_model",
    "check_retriever",
    "complete",
    "known_architectures",
    "read_settings",
    "training_digests",
    "with_item",
]
