"""Targets with a fault, which show that the harness finds faults."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.inputs import OPTION_BYTES, exact

LIBRARY = Path("libplanted.so")
SOURCE = """
#include <cstdint>
extern "C" __attribute__((visibility("default"))) int32_t planted(const uint8_t* p, int32_t count) {
    if (count == 0) return 0;
    if (p[0] == 'r') return p[count];
    if (p[0] == 'o') return count + INT32_MAX;
    if (p[0] == 'h') for (volatile int32_t i = 0;; i = 0) {}
    return p[count - 1];
}
"""


class Planted:
    """Reads beyond its input, overflows a number or loops for ever if the input begins with r, o or h."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        self._library = ctypes.CDLL(str(prefixes[0] / LIBRARY))

    def corpus(self) -> list[bytes]:
        return [b"a long text without a fault", b"read"]

    def run(self, data: bytes) -> None:
        text = exact(data[OPTION_BYTES:])
        self._library.planted(ctypes.c_void_p(text.ctypes.data), len(text))


class Refusing:
    """Raises an exception for an input with a byte that is no ASCII."""

    def __init__(self, _: Sequence[Path]) -> None:
        pass

    def corpus(self) -> list[bytes]:
        return [b"a long text"]

    def run(self, data: bytes) -> None:
        data[OPTION_BYTES:].decode("ascii")
