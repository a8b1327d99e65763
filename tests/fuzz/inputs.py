"""The inputs of a target: mutations of the files of its corpus, equal for equal seeds.

An input begins with OPTION_BYTES bytes that choose the options of a run, such as the separator of a scan. The
other bytes are the mutated file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

OPTION_BYTES = 8
_MOST_BYTES = 1 << 20
# What parsers treat in a special way: line ends, quotes, bytes that are not UTF-8, brackets, limits of numbers.
_TOKENS = [
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b'"',
        b'""',
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b"\t",
        b",",
        b":",
        b" ",
        b"#",
    ),
    *(b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xef\xbb\xbf", b"\xc2\x85"),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"{}",
        b"[]",
        b"null",
        b"true",
        b"false",
        b'"a":',
        b"- ",
        b"&x ",
        b"*x",
        b"!!a ",
    ),
    *(
        b"0",
        b"-1",
        b"-0",
        b"0.0",
        b"1e400",
        b"1e-400",
        b"9" * 19,
        b"0." + b"0" * 400 + b"1",
        b"1." + b"3" * 40,
    ),
    *(b"NaN", b"Infinity", b"<<: ", b"../../x"),
    *(number.to_bytes(4, "little") for number in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)),
    *(number.to_bytes(8, "little") for number in (2**31, 2**63 - 1, 2**63, 2**64 - 1)),
]
# Values that take the place of a value of JSON.
_VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        -(2**63) - 1,
        10**30,
        0.5,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        "x",
        "../../x",
        "/etc/passwd",
        "nul\0",
        "\ud800",
        "9" * 30,
        [],
        [[]],
        {},
        {"": {}},
        [None],
        ["x", 1],
    ),
]
_NESTED = "lists in lists"  # in place of a value that json.dumps cannot write


def input_of(seed: int, number: int, corpus: Sequence[bytes]) -> bytes:
    """Returns the input with this number. Every process returns equal bytes for equal arguments."""
    draw = random.Random(f"{seed}:{number}")
    return draw.randbytes(OPTION_BYTES) + _mutated(draw, corpus)


def divided(data: bytes) -> tuple[random.Random, bytes]:
    """Returns the source of the options of an input, and the bytes after the first OPTION_BYTES."""
    return random.Random(data[:OPTION_BYTES]), data[OPTION_BYTES:]


def exact(data: bytes) -> np.ndarray:
    """Returns the bytes as an array whose memory ends with them, so that a sanitizer sees a read beyond them."""
    return np.frombuffer(data, np.uint8).copy()


def with_wrong_value(draw: random.Random, values: Any) -> bytes:
    """Returns the text of JSON values in which one value, at any depth, is replaced, or its key is removed.

    Args:
        draw: chooses the value.
        values: the values, which must not be used afterwards: they are changed.
    """
    places = _places(values)
    container, key = draw.choice(places)
    if draw.random() < 0.2:
        del container[key]
    else:
        container[key] = draw.choice((*_VALUES, _NESTED))
    depth = draw.choice((30, 900, 100_000))
    return json.dumps(values).replace(f'"{_NESTED}"', "[" * depth + "]" * depth).encode()


def _places(values: Any) -> list[tuple[Any, Any]]:
    keys = (
        list(values) if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ()
    )
    return [place for key in keys for place in [(values, key), *_places(values[key])]]


def _mutated(draw: random.Random, corpus: Sequence[bytes]) -> bytes:
    if draw.random() < 0.05:
        return draw.randbytes(draw.choice((0, 1, 7, 64, 1000)))
    data = bytearray(draw.choice(corpus))
    for _ in range(draw.choice((0, 1, 1, 2, 4, 16))):
        _mutate(draw, data, corpus)
    return bytes(data[:_MOST_BYTES])


def _mutate(draw: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    """Changes some bytes, removes or repeats some, or inserts a token or a part of another file."""
    start = draw.randrange(len(data) + 1)
    stop = min(start + draw.choice((1, 2, 4, 8, 30, 300)), len(data))
    kind = draw.randrange(8)
    if kind == 0 and start < stop:
        data[start] ^= 1 << draw.randrange(8)
    elif kind == 1:
        data[start:stop] = draw.randbytes(stop - start)
    elif kind == 2:
        del data[start:stop]
    elif kind == 3:
        data[start:start] = data[start:stop] * draw.choice((1, 2, 20))
    elif kind == 4:
        other = draw.choice(corpus)
        place = draw.randrange(len(other) + 1)
        data[start:stop] = other[place : place + draw.choice((4, 30, 300))]
    elif kind == 5 and draw.random() < 0.2:
        del data[start:]
    elif kind == 6 and draw.random() < 0.1:
        data[start:start] = draw.choice(_TOKENS) * draw.choice((100, 10_000))
    else:
        data[start : draw.choice((start, stop))] = draw.choice(_TOKENS)


def mutated_copy(draw: random.Random, data: bytes) -> bytes:
    """Returns the bytes of a file with 1 to 16 mutations."""
    copy = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        _mutate(draw, copy, [data])
    return bytes(copy)
