"""Finds the champion of a run date, and checks it against the features of this date.

The champion is the model that serves.
"""

from __future__ import annotations

from conf.errors import DataError
from scoring.model.model_info import ModelInfo, read_model_info
from storage.dataset import Dataset, read_dataset, read_spec
from storage.run_context import RunContext
from training.registry.versions import champion_as_of, model_path


def champion_and_dataset(context: RunContext) -> tuple[ModelInfo, Dataset]:
    """Returns the champion and the dataset of the run date. Both must have the same workflow version.

    Raises:
        DataError: there is no champion or no dataset. Or the dataset was made with another workflow version
            than the champion.
    """
    lake, name = context.lake, context.config.name
    version = champion_as_of(lake, name, context.run_date)
    if version is None:
        raise DataError(
            f"{lake.models(name)} has no champion on {context.run_date}",
            "run build_features, train_model and evaluate_model for this date or an earlier one",
        )
    model = read_model_info(model_path(lake, name, version), lake.recorder)
    dataset = read_dataset(lake, context.run_date)
    if model.spec.workflow_version != dataset.workflow_version:
        raise DataError(
            f"champion {version} needs features of workflow {model.spec.workflow_version}, but "
            f"the dataset of {context.run_date} was made with workflow {dataset.workflow_version}",
            f"run build_features --run-date {context.run_date} --set workflow.mode=apply, "
            "then build_candidates",
        )
    model.require_spec(read_spec(lake, dataset.workflow_version))
    return model, dataset
