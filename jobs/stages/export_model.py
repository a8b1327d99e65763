"""Exports the model that serves on a run date."""

from __future__ import annotations

from collections.abc import Sequence

from scoring.model.champion import serving_model_and_dataset
from scoring.model.export import export
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.export.smaller_programs import Format


def run(context: RunContext, folder: str, formats: Sequence[Format] = ()) -> tuple[str, JobSummary]:
    """Writes the model's programs to a new folder, and its ONNX programs also in other number formats.

    Returns:
        A text for a terminal, and the summary.

    Raises:
        ConfigError: the folder exists.
        DataError: there is no champion.
        InfrastructureError: the folder cannot be written, or a program differs too much from the model.
    """
    model, _ = serving_model_and_dataset(context)
    with context.phase("export"):
        description = export(model, folder, formats)
    programs = description["programs"]
    lines = [f"model {description['model_version']} in {folder}:"]
    lines += [
        f"  {name}.onnx, {name}.pt2   {facts['output']}, differs from the model by at most "
        f"{max(facts['greatest_difference'].values()):.1g}"
        for name, facts in programs.items()
    ]
    lines += [
        f"  {name}.{number_format}.onnx   {facts['output']}, differs on average by {difference:.1g}"
        for name, facts in programs.items()
        for number_format, difference in facts.get("mean_difference", {}).items()
    ]
    facts = {name: description[name] for name in ("model_version", "workflow_version", "opset", "programs")}
    return "\n".join(lines), JobSummary(folder, None, None, None, facts)
