"""Starts a training where its parent ended, over a vocabulary that has grown since.

A value never changes its id and new ids follow at each column's end, so the parent's rows of a column are the first
rows of that column. In the stacked table every column after a grown one begins further down.

The optimisers' state comes along: rows that were trained long move slowly on, new rows learn at the full rate.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from conf.errors import DataError
from conf.feature_spec import FeatureSpec
from training.trainer import Trainer


@torch.no_grad()
def warm_start(
    trainer: Trainer, spec: FeatureSpec, parent_state: Mapping[str, Tensor], parent_spec: FeatureSpec
) -> None:
    """Copies a parent's training state into that of a fresh model; rows of ids the parent lacks stay as they are.

    Args:
        trainer: of a freshly initialised model of `spec`.
        parent_state: `Trainer.state()` of the parent.

    Raises:
        DataError: the parent has other features, more ids in a column, or other layers.
    """
    _require_extension(spec, parent_spec)
    by_row = trainer.row_state()
    state = trainer.state()
    if state.keys() != parent_state.keys():
        raise _misfit(f"the parent's state is {sorted(parent_state)}, the model's {sorted(state)}")
    for name, value in state.items():
        old = parent_state[name]
        if name in by_row and old.shape[1:] == value.shape[1:]:
            columns = zip(value.split(spec.cardinalities), old.split(parent_spec.cardinalities), strict=True)
            for rows, old_rows in columns:
                rows[: len(old_rows)] = old_rows
        elif old.shape == value.shape:
            value.copy_(old)
        else:
            raise _misfit(f"{name} has shape {tuple(value.shape)}, the parent's {tuple(old.shape)}")


def _require_extension(spec: FeatureSpec, parent: FeatureSpec) -> None:
    mine = [(each.name, each.kind) for each in spec.features]
    theirs = [(each.name, each.kind) for each in parent.features]
    if mine != theirs:
        changed = sorted({name for name, _ in set(mine) ^ set(theirs)}) or "their order"
        raise _misfit(f"features differ from the parent's: {changed}")
    for feature, old in zip(spec.embedded, parent.embedded, strict=True):
        if int(feature.cardinality or 0) < int(old.cardinality or 0):
            raise _misfit(
                f"{feature.name} has {feature.cardinality} ids, the parent's vocabulary {old.cardinality}: "
                "it was not extended"
            )


def _misfit(problem: str) -> DataError:
    return DataError(
        f"cannot warm-start: {problem}",
        "run build_features with workflow.mode=extend, or train afresh with --set train.retrain.start=fresh",
    )
