"""Fits a workflow on the rows of one table in memory, without a lake and without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from conf.errors import ConfigError, DataError
from conf.types import FeatureGroup
from etl.fit.fit_rounds import fit_rounds, fit_without_statistics
from etl.fit.frame_statistics import FrameRows, FrameStatistics
from etl.fit.rounds import plan_rounds
from etl.ops import Operator, operator_digests, operator_from_config
from etl.ops.base import Type
from etl.workflow.chain_descriptions import canonical_groups, chain_description
from etl.workflow.feature_plan import plan_features
from etl.workflow.fitted_features import fitted_features
from etl.workflow.local_workflow import LocalWorkflow
from etl.workflow.raw_values import column_types, raw_values, require_columns
from etl.workflow.unfitted_chains import Chain
from storage.feature_spec import LABEL, FeatureSpec
from storage.manifest import digest_of

# Part of every version's digest. Raise it when the meaning of an operator changes.
_FORMAT = 1


def columns_of(groups: Sequence[FeatureGroup], label: str) -> tuple[list[str], list[str]]:
    """Returns the raw columns that feature groups need, and those that a fit reads in addition.

    The second list has the columns that operators compute statistics of, and the label if an operator may
    read it.

    Raises:
        ConfigError: an operator is unknown, or cannot be fitted on a table.
    """
    operators = [operator_from_config(entry) for group in groups for entry in group.ops]
    _require_fit(operators)
    inputs = list(dict.fromkeys(name for group in groups for name in group.columns))
    read = list(dict.fromkeys(name for operator in operators for name in operator.reads()))
    read += [label] if any(operator.needs == "groups" for operator in operators) else []
    return inputs, [name for name in read if name not in inputs]


def fit_frame(
    rows: pa.Table, groups: Sequence[FeatureGroup], types: Mapping[str, Type], label: str
) -> LocalWorkflow:
    """Returns a workflow that is fitted on all rows of a table. Its tables are in memory.

    Learned values equal those that build_features learns from one training day with these rows, if `row_id`
    is the position of a row. The version is a digest of the features and of everything that was learned.

    Args:
        rows: a table with the columns of `columns_of`. The label may be missing.
        groups: the section `features` of the configuration.
        types: maps raw columns to their types. Other columns have the type of their values.
        label: the column with the label.

    Raises:
        ConfigError: an operator does not accept a column, or cannot be fitted on a table; or a feature reads
            the label.
        DataError: the table has no rows, lacks a column or has a value that does not fit; or statistics of a
            column cannot be computed.
    """
    inputs, others = columns_of(groups, label)
    require_columns(rows, inputs)
    if not len(rows):
        raise DataError("the frame has no rows, so nothing can be learned", "pass the training rows")
    columns = column_types(rows, [*inputs, *(name for name in others if name != label)], types)
    if label in others and label in rows.column_names:
        columns[label] = "float"
    chains, names = plan_features(groups, columns, label)
    statistics = FrameStatistics(FrameRows(rows, raw_values(rows, _types(chains)), {LABEL: label}))
    rounds = plan_rounds(chains, extends=False, has_value_counts=False)
    fitted = fit_rounds(chains, rounds, {"rows": statistics}, fit_without_statistics)
    features = fitted_features(chains, names, fitted, {})
    tables = statistics.tables()
    extensions = operator_digests(step.operator.name for chain in chains for step in chain.steps)
    version = digest_of(
        {
            "frame": _FORMAT,
            "features": [group.model_dump(mode="json") for group in canonical_groups(groups)],
            "chains": [chain.to_json() for chain in fitted],
            "tables": tables.digests(),
            **({"extensions": extensions} if extensions else {}),
        }
    )
    return LocalWorkflow(
        version=version,
        parent=None,
        spec=FeatureSpec(features, (), version),
        chains=fitted,
        descriptions=tuple(chain_description(chain) for chain in chains),
        counted={},
        vocabularies=statistics.facts,
        local=tables,
    )


def _types(chains: Sequence[Chain]) -> dict[str, Type]:
    return {name: kind for chain in chains for name, kind in zip(chain.inputs, chain.types, strict=True)}


def _require_fit(operators: Sequence[Operator]) -> None:
    """Raises ConfigError for an operator that reads more than the rows."""
    external = sorted({operator.name for operator in operators if operator.needs == "external"})
    if external:
        raise ConfigError(
            f"the operators {external} read a table outside the frame, so they cannot be fitted on a frame",
            "join this table with the frame before the fit, and use its columns",
        )
