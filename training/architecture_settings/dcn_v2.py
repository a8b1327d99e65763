"""The settings of training/architectures/dcn_v2.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from conf.types import PositiveInt, Strict
from training.settings.shared_settings import DropShare, HiddenWidths

# The logit does not depend on the scopes of features (user, item, context or pair), so a training run can
# start from a model whose features had other scopes.
READS_SCOPES = False


class Settings(Strict):
    """DCN-V2: cross layers and an MLP over the concatenated features x_0 (Wang et al., arXiv:2008.13535)."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    bottom_mlp: list[PositiveInt] = Field(
        default=[],
        description="Widths of the layers of an MLP over the dense features, in order. If the list is "
        "empty, x_0, the input of the cross layers, contains the dense features unchanged.",
    )
    cross_layers: PositiveInt = Field(default=3, description="Number of cross layers.")
    cross_rank: PositiveInt | None = Field(
        default=None,
        description="Rank of the weight matrix of a cross layer. Null means that the matrix has full rank.",
    )
    structure: Literal["stacked", "parallel"] = Field(
        default="stacked",
        description="Input of the MLP `deep`. With `stacked`, it is the output of the last cross layer. With "
        "`parallel`, it is x_0, and the logit is computed from the output of the last cross layer and the "
        "output of the MLP. Figure 1 of the paper shows both structures.",
    )
    deep: HiddenWidths = Field(
        default=[64, 32],
        description="Widths of the hidden layers of the MLP, in order. The last layer, whose only output is "
        "the logit, is not listed.",
    )
    dropout: DropShare = Field(
        default=0.0,
        description="Dropout rate: the share of the outputs of hidden layers that is set to 0 in training.",
    )
