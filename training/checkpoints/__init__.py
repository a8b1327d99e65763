"""Models and checkpoints on disk: safetensors files, and a JSON file that lists them.

The JSON file is written last. A tensor file that is not listed in such a JSON file is not part of a model or
checkpoint.
"""

from training.checkpoints.checkpoints import Checkpoints, Position
from training.checkpoints.model import LoadedModel, load_model, open_trained, save_model, save_trained

__all__ = [
    "Checkpoints",
    "LoadedModel",
    "Position",
    "load_model",
    "open_trained",
    "save_model",
    "save_trained",
]
