"""Changes Horovod's behaviour in the driver.

Without these changes, Horovod would fork the driver, and start ranks with the wrong Python interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import horovod.runner.gloo_run
import horovod.runner.launch
import horovod.spark.gloo_run
import horovod.spark.runner

_CHECK_GLOO = (horovod.runner.launch, horovod.spark.runner)


@contextmanager
def no_fork() -> Iterator[None]:
    """Prevents Horovod from forking the driver.

    Horovod would fork to import torch and to check for Gloo in the child process. This takes seconds. The
    child process would also share the driver's sockets to the JVM, and reset them when it ends. The check is
    not needed: if Gloo is missing, the ranks end at once in hvd.init().
    """
    originals = [module.gloo_built for module in _CHECK_GLOO]
    for module in _CHECK_GLOO:
        module.gloo_built = lambda verbose=False: True
    try:
        yield
    finally:
        for module, original in zip(_CHECK_GLOO, originals, strict=True):
            module.gloo_built = original


@contextmanager
def elastic_interpreter(python: str) -> Iterator[None]:
    """Makes Horovod start elastic ranks with the interpreter `python`.

    Horovod accepts an interpreter only for ranks that are not elastic. For elastic ranks, Horovod uses the
    driver's path of the interpreter. This path may not exist on executors, which may have unpacked the
    environment to another folder.
    """
    original = horovod.spark.gloo_run.sys
    horovod.spark.gloo_run.sys = SimpleNamespace(executable=python)
    try:
        yield
    finally:
        horovod.spark.gloo_run.sys = original
