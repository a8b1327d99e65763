"""XXH64 in pure Python, one value at a time.

Source: the xxHash specification (doc/xxhash_spec.md, "XXH64 Algorithm").
"""

from __future__ import annotations

from collections.abc import Iterator

_MASK = 2**64 - 1
_PRIMES = (
    0b1001111000110111011110011011000110000101111010111100101010000111,
    0b1100001010110010101011100011110100100111110101001110101101001111,
    0b0001011001010110011001111011000110011110001101110111100111111001,
    0b1000010111101011110010100111011111000010101100101010111001100011,
    0b0010011111010100111010110010111100010110010101100110011111000101,
)


def xxh64(data: bytes, seed: int = 0) -> int:
    """The unsigned 64-bit digest."""
    p1, p2, p3, p4, p5 = _PRIMES
    if len(data) < 32:
        acc = (seed + p5) & _MASK
    else:
        lanes = [(seed + p1 + p2) & _MASK, (seed + p2) & _MASK, seed & _MASK, (seed - p1) & _MASK]
        for stripe in range(0, len(data) - 31, 32):
            lanes = [_mix(lane, word) for lane, word in zip(lanes, _words(data, stripe), strict=True)]
        acc = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            acc = ((acc ^ _mix(0, lane)) * p1 + p4) & _MASK
    acc = (acc + len(data)) & _MASK
    rest = data[len(data) // 32 * 32 :]
    while len(rest) >= 8:
        acc = (_rotated(acc ^ _mix(0, _integer(rest[:8])), 27) * p1 + p4) & _MASK
        rest = rest[8:]
    if len(rest) >= 4:
        acc = (_rotated(acc ^ (_integer(rest[:4]) * p1 & _MASK), 23) * p2 + p3) & _MASK
        rest = rest[4:]
    for byte in rest:
        acc = _rotated(acc ^ (byte * p5 & _MASK), 11) * p1 & _MASK
    acc = (acc ^ (acc >> 33)) * p2 & _MASK
    acc = (acc ^ (acc >> 29)) * p3 & _MASK
    return acc ^ (acc >> 32)


def signed(digest: int) -> int:
    """The digest as Spark has it, a bigint."""
    return digest - 2**64 if digest >= 2**63 else digest


def of_text(text: str) -> int:
    """What Spark's xxhash64 gives for a string."""
    return signed(xxh64(text.encode("utf-8"), 42))


def of_integer(number: int) -> int:
    """What Spark's xxhash64 gives for a bigint: the hash of its eight little-endian bytes."""
    return signed(xxh64(number.to_bytes(8, "little", signed=True), 42))


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _words(data: bytes, start: int) -> Iterator[int]:
    return (_integer(data[at : at + 8]) for at in range(start, start + 32, 8))


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & _MASK


def _mix(lane: int, word: int) -> int:
    return _rotated((lane + word * _PRIMES[1]) & _MASK, 31) * _PRIMES[0] & _MASK
