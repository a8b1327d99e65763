"""The command line of export_model, which needs no Spark session."""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from jobs.command_line import job_parser, run_without_session
from jobs.stages.export_model import run
from scoring.serving.model_configs import Backend
from training.export.smaller_programs import Format

DESCRIPTION = (
    "Exports the model that serves on a run date (the champion or its refit) to a new folder, for programs "
    "without this project: as ONNX (ranker.onnx) and as a program of torch.export (ranker.pt2). For models "
    "of user and item vectors, the folder also contains programs for users and items: user.onnx, "
    "item.onnx, user.pt2 and item.pt2. The job compares each program with the model before it creates the "
    "folder. export.json describes the inputs."
)


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
