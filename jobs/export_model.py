"""Exports the model that serves on a run date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, get_args

from conf.errors import ConfigError
from etl.workflow.fitted_workflow import load_local
from jobs.command_line import job_parser, run_without_session
from scoring.model.champion import serving_model_and_dataset
from scoring.model.export import export
from scoring.model.model_info import ModelInfo, read_model_info
from scoring.serving.model_configs import ENSEMBLE, TREATMENT_ENSEMBLE, Backend
from scoring.serving.repository import Variant, add_to_repository, withdraw_treatment
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.export.write_export import Format
from training.registry.served_experiments import served_experiment

DESCRIPTION = (
    "Exports the model that serves on a run date (the champion or its refit) to a new folder, for programs "
    "without this project: as ONNX (ranker.onnx) and as a program of torch.export (ranker.pt2). For models "
    "of user and item vectors, the folder also contains programs for users and items: user.onnx, "
    "item.onnx, user.pt2 and item.pt2. The job compares each program with the model before it creates the "
    "folder. export.json describes the inputs."
)


def run(
    context: RunContext,
    folder: str,
    formats: Sequence[Format] = (),
    triton: Backend | None = None,
    *,
    online: bool = False,
    compiled: bool = False,
) -> tuple[str, JobSummary]:
    """Writes the model's programs to a new folder, and its ONNX programs also in other number formats.

    If `compiled` is true, each program is also compiled for the processor of this machine. If `triton` is
    set, the function instead adds the model to a model repository of Triton Inference Server. While an
    experiment runs, it also adds the model of the treatment.

    Returns:
        A text for a terminal, and the summary.

    Raises:
        ConfigError: without `triton`: the folder exists, `online` is set, or there is no C++ compiler for
            compiled programs. With `triton`: `formats` or `compiled` is set, or `add_to_repository` raises
            this error.
        DataError: there is no champion.
        InfrastructureError: the folder cannot be written, or a program differs too much from the model.
    """
    model, _ = serving_model_and_dataset(context)
    if triton is not None:
        refused = ["--formats", *formats] if formats else ["--compiled"] if compiled else []
        if refused:
            raise ConfigError(
                f"{' '.join(refused)} has no effect with --triton", "leave one of the options out"
            )
        return _add(context, model, folder, triton, online=online)
    if online:
        raise ConfigError("--online has no effect without --triton", "add --triton, or leave --online out")
    with context.phase("export"):
        description = export(model, folder, formats, compiled=compiled)
    programs = description["programs"]
    lines = [f"model {description['model_version']} in {folder}:"]
    lines += [
        f"  {', '.join(f'{name}.{kind}' for kind in facts['greatest_difference'])}   {facts['output']}, "
        "differs from the model by at most "
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


def _add(
    context: RunContext, model: ModelInfo, folder: str, backend: Backend, *, online: bool
) -> tuple[str, JobSummary]:
    """Adds the model, and the model of the treatment if any, to a repository of Triton Inference Server."""
    experiment = served_experiment(context.config, context.lake, context.run_date)
    models: dict[Variant, ModelInfo] = {"control": model}
    if experiment is not None and experiment.folder is not None:
        models["treatment"] = read_model_info(experiment.folder, context.recorder)
    lines: list[str] = []
    facts: dict[str, Any] = {}
    with context.phase("export"):
        for variant, info in models.items():
            workflow = load_local(context.lake, info.spec.workflow_version)
            added = add_to_repository(info, workflow, folder, backend, online=online, variant=variant)
            facts[variant] = {name: added[name] for name in ("version", "model_version", "workflow_version")}
            ensemble = ENSEMBLE if variant == "control" else TREATMENT_ENSEMBLE
            lines.append(
                f"model {added['model_version']} in {folder}: version {added['version']} of the ensemble "
                f"{ensemble}"
            )
        if "treatment" not in models:
            withdraw_treatment(folder)
    control = facts.pop("control")
    return "\n".join(lines), JobSummary(folder, None, None, None, {**control, **facts})


def main(argv: list[str] | None = None) -> int:
    """Exports the model, prints the job summary, and returns the exit code."""
    arguments = _parser().parse_args(argv)
    return run_without_session(
        "export_model",
        arguments,
        lambda context: run(
            context,
            arguments.output,
            arguments.formats,
            arguments.triton,
            online=arguments.online,
            compiled=arguments.compiled,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, and the folder."""
    parser = job_parser("export_model", DESCRIPTION)
    parser.add_argument(
        "--output",
        required=True,
        metavar="FOLDER",
        help="folder to write, which must not exist; with --triton, a model repository, which may exist",
    )
    parser.add_argument(
        "--formats",
        nargs="+",
        default=[],
        choices=get_args(Format),
        help="also write each ONNX program with numbers of 16 or 8 bits, such as ranker.int8.onnx",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="also compile each program of torch.export with AOTInductor, for the processor type of this "
        "machine (ranker.aotinductor.pt2). This needs a C++ compiler",
    )
    parser.add_argument(
        "--triton",
        nargs="?",
        const="onnxruntime",
        choices=get_args(Backend),
        help="add the model to a model repository of Triton Inference Server, where it runs in Triton's "
        "backend of ONNX Runtime (the default), in this backend with TensorRT on a GPU, or in Triton's "
        "Python backend. While an experiment runs, also add the model of its treatment",
    )
    parser.add_argument(
        "--online",
        action="store_true",
        help="with --triton: also add an ensemble that looks up the features of users and items in the store "
        "that the sink redis fills",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
