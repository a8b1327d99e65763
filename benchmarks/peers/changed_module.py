"""Changes a module of the product when a process imports it. The files sitecustomize.py of benchmarks use it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self._change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def change_at_import(name: str, change: Callable[[Any], None]) -> None:
    """Calls a function with the module of this name, after this process has imported the module.

    Args:
        name: the full name of the module. The process has not imported it yet.
        change: gets the module, and may replace its functions and classes.
    """
    sys.meta_path.insert(0, _Finder(name, change))
