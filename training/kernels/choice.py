"""Decides whether a process uses Triton kernels.

The decision depends on the configuration, and on whether Triton can run on the machine.

When Triton runs its first kernel, it compiles the C code that launches kernels. So every node with a GPU
needs a C compiler (`CC`, else gcc or clang on PATH), Python.h and the headers of the C library. Nodes without
a GPU do not need them.
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
from typing import assert_never

import torch

from conf.errors import ConfigError
from conf.train_types import Kernels
from training import kernels

log = logging.getLogger("nightrank.kernels")

_PROBE = "#include <Python.h>\n#include <stdlib.h>\nint probe(void) { return EXIT_SUCCESS; }\n"


def use_kernels(wanted: Kernels, device: torch.device, setting: str) -> bool:
    """Returns whether a model on this device uses Triton kernels; otherwise it uses torch's operators.

    If `wanted` is `auto`, the model uses kernels if Triton can run. If there is a GPU, but Triton cannot run,
    a warning is logged once per process.

    Args:
        wanted: the value of the setting: `auto`, `triton` or `torch`.
        device: the device of the model.
        setting: the name of the setting, such as `train.kernels`, for messages.

    Raises:
        ConfigError: `wanted` is `triton`, but Triton cannot run in this process.
    """
    if wanted == "torch":
        return False
    missing = _missing(device)
    if missing is None:
        return True
    if wanted == "triton":
        raise ConfigError(
            f"{setting}=triton cannot be used on {os.uname().nodename}: {missing}",
            f"pass --set {setting}=auto, which uses torch's operators instead; or install a C compiler with "
            "the headers of the C library and of Python on every node with a GPU (docs/gpu.md)",
        )
    if wanted == "auto":
        if device.type == "cuda":
            _warn(setting, missing)
        return False
    assert_never(wanted)


def _missing(device: torch.device) -> str | None:
    """Returns why Triton cannot run kernels on tensors of this device; None if Triton can run them."""
    if not kernels.available(device):
        return f"Triton is not installed or has no kernels for {device}; it needs a GPU"
    return None if kernels.INTERPRETED else compiler_problem()


def compiler_problem() -> str | None:
    """Returns why Triton cannot compile C in this environment; None if a test compilation succeeds."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler: CC is not set, and PATH has no gcc and no clang"
    scheme = sysconfig.get_default_scheme()
    headers = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    return _compile(compiler, headers)


@cache
def _compile(compiler: str, headers: str) -> str | None:
    """Returns the error if the compiler cannot compile with these headers, else None."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text(_PROBE, encoding="utf-8")
        command = [compiler, str(source), "-shared", "-fPIC", f"-I{headers}", "-o", f"{folder}/probe.so"]
        try:
            compilation = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"the C compiler {compiler} does not start: {error}"
    if compilation.returncode == 0:
        return None
    lines = compilation.stderr.strip().splitlines()
    reason = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
    return f"{compiler} cannot compile C for Python ({headers}): {reason}"


@cache
def _warn(setting: str, missing: str) -> None:
    """Warns once per process that torch's operators are used.

    If every model logged the warning, a scoring worker that loads several models would repeat it.
    """
    log.warning(
        "torch's operators are used instead of Triton's kernels, which is slower: %s (%s=auto, host %s)",
        missing,
        setting,
        os.uname().nodename,
    )
