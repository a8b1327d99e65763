"""Starts a training from the state of its parent, an earlier model whose vocabularies may be smaller.

The id of a value never changes, and new ids are appended. So the table rows that the parent has for a feature
are the first rows of that feature. Each rank reads its rows directly from the parent's files.

The state of the optimizers is copied too. So rows that were trained for long continue with small updates, and
new rows learn at the full rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conf.errors import DataError
from storage.feature_spec import FeatureSpec
from training.checkpoints.stateful import Stateful
from training.checkpoints.stored import StateMismatchError, StoredState
from training.embeddings.rows import RowBlock

# The loss scale is not copied: the precision may have changed, and the scale adapts quickly.
_NOT_COPIED = ("scaler.",)


def warm_start(trainer: Stateful, spec: FeatureSpec, parent: StoredState, parent_spec: FeatureSpec) -> None:
    """Copies a parent's state into a new trainer. Rows of ids that the parent does not have stay unchanged.

    Args:
        trainer: a trainer whose model has the features `spec` and was just initialized.
        spec: the features of this training.
        parent: the parent's training state on disk.
        parent_spec: the features of the parent.

    Raises:
        DataError: the parent has other features, other layers, or more ids in a feature.
    """
    _require_extension(spec, parent_spec)
    parent_rows = {
        name: [_parent_rows(block, parent_spec.cardinalities) for block in blocks]
        for name, blocks in trainer.row_state().items()
    }
    try:
        state = {name: value for name, value in trainer.state().items() if not name.startswith(_NOT_COPIED)}
        parent.load(state, parent_rows, unread=_NOT_COPIED)
    except StateMismatchError as error:
        raise _mismatch(str(error)) from error


def _parent_rows(block: RowBlock, cardinalities: Sequence[int]) -> RowBlock:
    """Returns a block with only those rows of `block` that the parent has too: the first rows."""
    rows = -(-max(cardinalities[block.feature] - block.first, 0) // block.step)
    return replace(block, rows=min(rows, block.rows))


def _require_extension(spec: FeatureSpec, parent: FeatureSpec) -> None:
    """Raises DataError unless the features are those of the parent, with cardinalities at least as large."""
    features = [(feature.name, feature.kind) for feature in spec.features]
    parent_features = [(feature.name, feature.kind) for feature in parent.features]
    if features != parent_features:
        changed = sorted({name for name, _ in set(features) ^ set(parent_features)}) or "their order"
        raise _mismatch(f"features differ from the parent's: {changed}")
    for feature, old in zip(spec.embedded, parent.embedded, strict=True):
        if int(feature.cardinality or 0) < int(old.cardinality or 0):
            raise _mismatch(
                f"{feature.name} has {feature.cardinality} ids, fewer than the {old.cardinality} ids of the "
                "parent, so its vocabulary does not extend the parent's"
            )


def _mismatch(problem: str) -> DataError:
    return DataError(
        f"cannot warm-start: {problem}",
        "run build_features with workflow.mode=extend, or use fresh weights: --set train.retrain.start=fresh",
    )
