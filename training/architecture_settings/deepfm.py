"""The settings of training/architectures/deepfm.py."""

from __future__ import annotations

from pydantic import Field

from conf.types import PositiveInt, Strict
from training.settings.shared_settings import DropShare, HiddenWidths

# The logit does not depend on the scopes of features (user, item, context or pair), so a training run can
# start from a model whose features had other scopes.
READS_SCOPES = False


class Settings(Strict):
    """DeepFM: a factorization machine and an MLP over the same embeddings (Guo et al., arXiv:1703.04247)."""

    embedding_dim: PositiveInt = Field(default=10, description="Width of an embedding vector.")
    field_weights: bool = Field(
        default=False,
        description="Whether the dot product of each pair of features has its own trained weight, as in a "
        "field-weighted factorization machine (Pan et al. 2018, arXiv:1806.03514). If false, all products "
        "have the weight 1, as in the paper of DeepFM.",
    )
    deep: HiddenWidths = Field(
        default=[400, 400, 400],
        description="Widths of the hidden layers of the MLP, in order. The last layer, whose only output is "
        "the logit, is not listed.",
    )
    dropout: DropShare = Field(
        default=0.0,
        description="Dropout rate: the share of the outputs of hidden layers that is set to 0 in training.",
    )
