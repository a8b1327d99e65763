"""The process that runs a target on its inputs, one after the other: python -m tests.fuzz.child.

It stores each input before it runs it, so that the input is known if the process crashes or hangs.
"""

from __future__ import annotations

import argparse
import importlib
import mmap
import resource
import time
from pathlib import Path

from tests.fuzz.inputs import input_of

_NUMBER_BYTES = 8
MOST_BYTES = 6 << 30  # of memory
_ROOM = 4 << 20  # for an input


class CurrentInput:
    """A file with the number of the current input, and its bytes. It survives the process that writes it."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_ROOM)
            self._memory = mmap.mmap(file.fileno(), _ROOM)
        self.write(-1, b"")

    def write(self, number: int, data: bytes) -> None:
        """Replaces the current input."""
        head = number.to_bytes(_NUMBER_BYTES, "little", signed=True) + len(data).to_bytes(
            _NUMBER_BYTES, "little"
        )
        self._memory[: len(head) + len(data)] = head + data

    @staticmethod
    def read(path: Path) -> tuple[int, bytes]:
        """Returns the number and the bytes of the current input; -1 and nothing before the first one."""
        whole = path.read_bytes() if path.exists() else b""
        if not whole:
            return -1, b""
        size = int.from_bytes(whole[_NUMBER_BYTES : 2 * _NUMBER_BYTES], "little")
        return (
            int.from_bytes(whole[:_NUMBER_BYTES], "little", signed=True),
            whole[2 * _NUMBER_BYTES : 2 * _NUMBER_BYTES + size],
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", help="module:name")
    parser.add_argument("current", type=Path, help="file of the current input")
    parser.add_argument(
        "--prefix", action="append", default=[], help="prefix of a library, in the target's order"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--input", type=Path, help="run only this input")
    options = parser.parse_args()
    if not options.prefix:  # a sanitizer reserves terabytes of addresses, and has a limit of its own
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    module, name = options.target.split(":")
    target = getattr(importlib.import_module(module), name)([Path(prefix) for prefix in options.prefix])
    current = CurrentInput(options.current)
    if options.input is not None:
        data = options.input.read_bytes()
        current.write(0, data)
        target.run(data)
        return
    corpus = target.corpus()
    number, end = 0, time.monotonic() + options.seconds
    while number == 0 or time.monotonic() < end:
        data = input_of(options.seed, number, corpus)
        current.write(number, data)
        target.run(data)
        number += 1
    print(number)


if __name__ == "__main__":
    main()
