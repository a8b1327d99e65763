"""Adds up the CPU seconds that a job spends in the functions of storage/file_digests.py.

Python imports this module at its start, if its folder is in PYTHONPATH (benchmarks/digests.py). Each process appends
a line with the name of a function and its CPU seconds to the file whose path is in DIGEST_SECONDS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers.changed_module import change_at_import

_MODULE = "storage.file_digests"
_FUNCTIONS = ("require_intact", "require_intact_copy", "compare", "digest_of_file", "is_compared")


def _append(name: str, seconds: float) -> None:
    with open(os.environ["DIGEST_SECONDS"], "a", encoding="utf-8") as file:
        file.write(f"{name} {seconds:.9f}\n")


def _measure(module: Any) -> None:
    inside = [False]  # one measured function calls another: only the outer one is counted

    def measured(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if inside[0]:
                return function(*arguments, **options)
            inside[0] = True
            began = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                inside[0] = False
                _append(name, time.thread_time() - began)

        return call

    for name in _FUNCTIONS:
        setattr(module, name, measured(name, getattr(module, name)))

    class Sink(module._HashingSink):
        """A file object that measures how long it hashes what it writes."""

        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._seconds = 0.0

        def write(self, part: Any) -> int:
            began = time.thread_time()
            self._hash.update(part)
            self._seconds += time.thread_time() - began
            return int(self._stream.write(part))

        @property
        def digest(self) -> str:
            _append("write", self._seconds)
            return str(self._hash.hexdigest())

    module._HashingSink = Sink


change_at_import(_MODULE, _measure)
