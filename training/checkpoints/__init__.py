"""Models and checkpoints on disk: what a rank holds, as safetensors in blocks of rows, and JSON that says where they lie.

The JSON is written last: tensors that no JSON names are no model and no checkpoint.
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
