"""The settings of training/models/deepfm.py."""

from __future__ import annotations

from conf.types import PositiveInt, Strict
from training.settings import DropShare, HiddenWidths


class Settings(Strict):
    """`deep` names the hidden widths in order; the layer to one logit is implied. `dropout`: share of their outputs dropped."""

    embedding_dim: PositiveInt = 10
    deep: HiddenWidths = [400, 400, 400]
    dropout: DropShare = 0.0
