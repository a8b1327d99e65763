"""Publishes the candidate items with the features of the workflow of an experiment's treatment."""

from __future__ import annotations

from conf.errors import DataError
from etl.latest.latest_features import latest_rules
from scoring.model.experiment import Treatment
from scoring.requests import ITEM_INDEX
from spark.rows import count, query, quoted, read_rows
from storage.feature_spec import ITEM_KEY
from storage.manifest import Manifest, current_manifest
from storage.publish import publish_rows
from storage.run_context import RunContext


def publish_treatment_items(
    context: RunContext, control_version: str, numbered: Manifest, treatment: Treatment
) -> Manifest:
    """Publishes `experiment_items`: candidate_items with the features of another workflow.

    An item has the same index as in candidate_items, because both variants have the same candidates.

    Args:
        context: the context of the run.
        control_version: the workflow version of the control.
        numbered: the manifest of the table `candidate_items` of the control.
        treatment: the model of the treatment, and its tables.

    Raises:
        DataError: an item of `candidate_items` has no features of the treatment's workflow.
    """
    lake, spec, run_date = context.lake, treatment.model.spec, context.run_date
    partition = lake.experiment_items(spec.workflow_version).partition(run_date)
    inputs = {"candidate_items": numbered.digest, "items": treatment.items.digest}
    current = current_manifest(partition, inputs)
    if current is not None:
        return current
    columns = [feature.name for feature in spec.scoped("item")]
    features = "".join(f", features.{quoted(name)}" for name in columns)
    rows = query(
        f"""
        SELECT numbered.{ITEM_INDEX}, numbered.{ITEM_KEY}{features}
        FROM {{numbered}} AS numbered
        JOIN {{features}} AS features ON features.{ITEM_KEY} = numbered.{ITEM_KEY}
        """,
        numbered=read_rows(
            context,
            lake.candidate_items(control_version).partition(run_date),
            numbered,
            columns=[ITEM_INDEX, ITEM_KEY],
        ),
        features=read_rows(context, lake.items(spec.workflow_version).partition(run_date), treatment.items),
    )
    if count(rows) != numbered.rows:
        raise DataError(
            f"{treatment.items.table} dt={run_date} has features of {count(rows)} of the {numbered.rows} "
            "candidate items",
            f"run build_features and build_candidates for {run_date} again",
        )
    return publish_rows(
        rows,
        partition,
        inputs=inputs,
        row_group_rows=context.config.output.row_group_rows,
        sort_by=ITEM_INDEX,
        rules=latest_rules(ITEM_KEY, columns, spec),
        grace_hours=context.config.output.grace_hours,
    )
