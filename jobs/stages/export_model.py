"""Exports the model that serves on a run date."""

from __future__ import annotations

from scoring.model.champion import serving_model_and_dataset
from scoring.model.export import export
from storage.job_summary import JobSummary
from storage.run_context import RunContext


def run(context: RunContext, folder: str) -> tuple[str, JobSummary]:
    """Writes the model's programs to a new folder.

    Returns:
        A text for a terminal, and the summary.

    Raises:
        ConfigError: the folder exists.
        DataError: there is no champion.
        InfrastructureError: the folder cannot be written, or a program differs from the model.
    """
    model, _ = serving_model_and_dataset(context)
    with context.phase("export"):
        description = export(model, folder)
    programs = description["programs"]
    lines = [f"model {description['model_version']} in {folder}:"]
    lines += [
        f"  {name}.onnx, {name}.pt2   {facts['output']}, differs from the model by at most "
        f"{max(facts['greatest_difference'].values()):.1g}"
        for name, facts in programs.items()
    ]
    facts = {name: description[name] for name in ("model_version", "workflow_version", "opset", "programs")}
    return "\n".join(lines), JobSummary(folder, None, None, None, facts)
