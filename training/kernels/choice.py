"""Whether the kernels are used in this process: what the configuration asks for, and what Triton needs to run.

When Triton runs its first kernel, it compiles the C code that launches kernels. It needs a C compiler (`CC`, else gcc or
clang on PATH), Python.h and the C library's headers on every node with a GPU. Nothing of that is needed on CPUs.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from conf.errors import ConfigError
from conf.train_types import Kernels
from training import kernels

log = logging.getLogger("nightrank.kernels")

_PROBE = "#include <Python.h>\n#include <stdlib.h>\nint probe(void) { return EXIT_SUCCESS; }\n"


def use_kernels(wanted: Kernels, device: torch.device, setting: str) -> bool:
    """Whether a model on this device uses the kernels where there is one, or torch's operators everywhere.

    `auto` uses them where Triton can run, and warns once a process where a GPU is there and a compiler is not.

    Args:
        setting: the name of what was configured, for messages: `train.kernels`.

    Raises:
        ConfigError: `triton` is asked for and cannot run here.
    """
    if wanted == "torch":
        return False
    missing = _missing(device)
    if missing is None:
        return True
    if wanted == "triton":
        raise ConfigError(
            f"{setting}=triton cannot be used on {os.uname().nodename}: {missing}",
            f"--set {setting}=auto, which uses torch's operators instead; or install a C compiler with the headers of the C library "
            "and of Python on every node with a GPU (docs/gpu.md)",
        )
    if device.type == "cuda":
        _warn(setting, missing)
    return False


def _missing(device: torch.device) -> str | None:
    """What Triton lacks to run kernels on tensors of this device; None if nothing."""
    if not kernels.available(device):
        return f"Triton is not installed or has no kernels for {device}; it needs a GPU"
    return None if kernels.INTERPRETED else compiler_problem()


def compiler_problem() -> str | None:
    """Why Triton could not compile C in this process' environment, found by compiling a few lines as it does; None if it could."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler: neither gcc nor clang is on PATH, and CC is not set"
    scheme = sysconfig.get_default_scheme()
    headers = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    return _compile(compiler, headers)


@cache
def _compile(compiler: str, headers: str) -> str | None:
    """The compiler's own words where it cannot compile against these headers; takes a tenth of a second."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text(_PROBE, encoding="utf-8")
        command = [compiler, str(source), "-shared", "-fPIC", f"-I{headers}", "-o", f"{folder}/probe.so"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"the C compiler {compiler} does not start: {error}"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    reason = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
    return f"{compiler} cannot compile C for Python ({headers}): {reason}"


@cache
def _warn(setting: str, missing: str) -> None:
    """Once a process: a worker that scores loads several models."""
    log.warning(
        "torch's operators take the place of Triton's kernels, slower: %s (%s=auto, host %s)",
        missing,
        setting,
        os.uname().nodename,
    )
