"""Starts a training where its parent ended, over a vocabulary that has grown since.

A value never changes its id and new ids follow at each column's end, so the parent's rows of a column are the first
rows of that column. Each rank reads those of its own rows that the parent has, straight from the parent's files.

The optimisers' state comes along: rows that were trained long move slowly on, new rows learn at the full rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conf.errors import DataError
from storage.feature_spec import FeatureSpec
from training.checkpoints.model import Trained
from training.checkpoints.stored import Misfit, StoredState
from training.embeddings.rows import RowBlock

# A loss scale belongs to a precision, which may have changed, and finds itself anew.
_OWN = ("scaler.",)


def warm_start(trainer: Trained, spec: FeatureSpec, parent: StoredState, parent_spec: FeatureSpec) -> None:
    """Copies a parent's training state into that of a fresh model; rows of ids the parent lacks stay as they are.

    Args:
        trainer: of a freshly initialised model of `spec`.
        parent: the parent's training state on disk.

    Raises:
        DataError: the parent has other features, more ids in a column, or other layers.
    """
    _require_extension(spec, parent_spec)
    old = {
        name: [_old_rows(block, parent_spec.cardinalities) for block in blocks]
        for name, blocks in trainer.row_state().items()
    }
    try:
        state = {name: value for name, value in trainer.state().items() if not name.startswith(_OWN)}
        parent.load(state, old, unread=_OWN)
    except Misfit as error:
        raise _misfit(str(error)) from error


def _old_rows(block: RowBlock, cardinalities: Sequence[int]) -> RowBlock:
    """The rows of a block that the parent has too: the first ones."""
    rows = -(-max(cardinalities[block.feature] - block.first, 0) // block.step)
    return replace(block, rows=min(rows, block.rows))


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
