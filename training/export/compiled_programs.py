"""Compiles programs of torch.export for CPUs with AOTInductor (docs.pytorch.org, "AOTInductor")."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from conf.errors import ConfigError

COMPILED = "aotinductor.pt2"  # the end of the names of compiled programs
_OPTIONS = {"freezing": True}  # weights are stored in the order in which products read them
_LONGEST_OUTPUT = 1_000  # characters of the compiler's output in an error


def write_compiled(source: Path, target: Path) -> None:
    """Compiles a program with any number of rows, for the processor of this machine.

    Args:
        source: the program, a file of `torch.export.save`.
        target: the file to write, which `torch._inductor.aoti_load_package` loads.

    Raises:
        ConfigError: there is no C++ compiler, or it fails.
    """
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler

    try:
        with torch.no_grad():
            aoti_compile_and_package(
                torch.export.load(source), package_path=str(target), inductor_configs=_OPTIONS
            )
    except (InductorError, InvalidCxxCompiler, CppCompileError) as error:
        cause = error.inner_exception if isinstance(error, InductorError) else error
        if not isinstance(cause, InvalidCxxCompiler | CppCompileError):
            raise
        text = cause.output.strip()[-_LONGEST_OUTPUT:] if isinstance(cause, CppCompileError) else str(cause)
        raise ConfigError(
            f"{source.stem} cannot be compiled: {text}",
            "install a C++ compiler (g++, or set CXX), or export without compiled programs",
        ) from error


def load_compiled(path: Path) -> Callable[..., Tensor]:
    """Returns a compiled program as a function of its inputs."""
    from torch._inductor import aoti_load_package

    program: Callable[..., Tensor] = aoti_load_package(str(path))
    return program


def instruction_set() -> str:
    """Returns the vector instructions that compiled programs use, such as avx512; empty if none."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    chosen = pick_vec_isa()
    return str(chosen) if chosen else ""
