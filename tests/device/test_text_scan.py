"""The scanner in torch operators against the compiled one: equal rows, reasons, codes, dictionaries and counts."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from device import text_scan
from device.text_scan import ScannedText, scan_text
from etl.native.scan import scan
from tests.checked_device import checked_device
from tests.etl.text.test_scan import BLOCK, _no_quotes

CPU = torch.device("cpu")


def assert_equal(found: ScannedText | None, block: bytes, separator: str, width: int) -> None:
    """Compares a scan of all fields with that of the compiled scanner."""
    assert found is not None
    expected = scan(block, separator, width, range(width), False, _no_quotes)
    assert found.lines == expected.lines
    assert np.array_equal(found.row_lines, expected.row_lines)
    assert dict(found.broken) == dict(expected.broken)
    assert list(found.columns) == list(found.counts) == list(range(width))
    for field, column in found.columns.items():
        array = column.to_arrow()
        array.validate(full=True)
        assert array.equals(expected.columns[field])  # also compares dictionaries, and so their order
        assert array.dictionary.offset == 0
        assert np.array_equal(found.counts[field], expected.counts[field])
        nulls = array.null_count
        assert column.count().tolist() == [*expected.counts[field].tolist(), nulls]


def scanned(block: bytes, width: int, device: torch.device = CPU) -> ScannedText | None:
    return scan_text(block, "\t", width, range(width), False, device)


@given(drawn=BLOCK, width=st.integers(1, 4))
def test_hostile_bytes_give_what_the_compiled_scanner_gives(
    drawn: tuple[list[bytes], bool], width: int
) -> None:
    lines, closed = drawn
    block = b"\n".join(lines) + (b"\n" if closed or not lines[-1] else b"")
    assert_equal(scanned(block, width), block, "\t", width)


@given(
    block=st.lists(
        st.sampled_from([b"\n", b"\t", b"\r", b"\xef\xbb\xbf", b"\0", b'"', b"a", b"\xe2", b"\x82"])
    ).map(b"".join)
)
def test_any_sequence_of_structural_bytes(block: bytes) -> None:
    for width in (1, 2, 3):
        assert_equal(scanned(block, width), block, "\t", width)


@given(block=st.binary(max_size=60))
def test_utf8_is_that_of_the_compiled_scanner(block: bytes) -> None:
    assert_equal(scanned(block, 1), block, "\t", 1)


def test_every_sequence_of_two_bytes_and_the_limits_of_longer_ones() -> None:
    pairs = [bytes([first, second]) for first in range(256) for second in range(256)]
    limits = [0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0]
    longer = [
        bytes([lead, second, third, fourth])
        for lead in (0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5)
        for second in limits
        for third in limits
        for fourth in (0x41, 0x80, 0xC3)
    ]
    texts = [text for text in (*pairs, *longer) if not {9, 10} & {*text}]
    block = b"\n".join(texts)
    assert_equal(scanned(block, 1), block, "\t", 1)


@pytest.mark.parametrize("rows", [1, 7, 3000])
@pytest.mark.parametrize("most", [1, 2**24])
def test_many_rows_values_and_rounds(rows: int, most: int) -> None:
    draw = random.Random(rows)
    lines = [
        "\t".join(
            [
                draw.choice(["", "a", "b", "ü" * 5]),
                f"{draw.randrange(2 * rows):x}",
                "v" * draw.randrange(0, 70),
                str(row),
            ]
        )
        for row in range(rows)
    ]
    block = "\n".join(lines).encode()
    with mock.patch.object(text_scan, "ROUND_FIELDS", most):
        assert_equal(scanned(block, 4), block, "\t", 4)


def test_long_values_that_differ_in_one_byte() -> None:
    long = b"x" * 200_000
    values = [
        long,
        long[:-1] + b"y",
        b"y" + long[1:],
        long,
        long + b"\0",
        long[:100_000] + b"\0" + long[100_001:],
    ]
    block = b"\n".join(values) + b"\n"
    assert_equal(scanned(block, 1), block, "\t", 1)


def test_only_wanted_fields_are_returned_in_their_order() -> None:
    block = b"1,x,z,\n2,,w,\n3,x,w,\n"
    found = scan_text(memoryview(b"--" + block)[2:], ",", 4, [3, 0, 1], False, CPU)
    assert found is not None
    assert list(found.columns) == [3, 0, 1]
    assert found.columns[1].to_arrow().to_pylist() == ["x", None, "x"]
    assert found.columns[3].to_arrow().to_pylist() == [None, None, None]


def test_quotes_are_left_to_the_host_only_where_they_may_enclose_fields() -> None:
    block = b'1,"x"\n2,y\n'
    assert scan_text(block, ",", 2, [0, 1], True, CPU) is None
    assert_equal(scan_text(block, ",", 2, [0, 1], False, CPU), block, ",", 2)
    assert scan_text(b"1,x\n2,y\n", ",", 2, [0, 1], True, CPU) is not None


def _zero(words: Tensor) -> Tensor:
    """A hash with which all values collide."""
    return torch.zeros_like(words)


@pytest.mark.parametrize(
    "block, is_collision",
    [
        (b"a\tx\nb\tx\n", True),
        (b"a\ta\na\ta\n", True),  # equal values of two columns
        (b"a\t\na\t\n", False),  # all keys are those of equal values
        (b"a\t\na\0\t\n", True),
        (b"\t\n\t\n", False),
        (b"aaaaaaaab\t\naaaaaaaac\t\n", True),
    ],
)
def test_a_collision_is_found(block: bytes, is_collision: bool) -> None:
    found = scan_text(block, "\t", 2, [0, 1], False, CPU, mix=_zero)
    if is_collision:
        assert found is None
    else:
        assert_equal(found, block, "\t", 2)
    assert_equal(scanned(block, 2), block, "\t", 2)


@given(drawn=BLOCK, bits=st.integers(0, 4))
def test_with_few_keys_a_scan_is_right_or_refused(drawn: tuple[list[bytes], bool], bits: int) -> None:
    block = b"\n".join(drawn[0]) + b"\n"

    def weak(words: Tensor) -> Tensor:
        return text_scan.mix(words) & (2**bits - 1)

    found = scan_text(block, "\t", 2, [0, 1], False, CPU, mix=weak)
    if found is not None:
        assert_equal(found, block, "\t", 2)


def _block(rows: int) -> bytes:
    draw = random.Random(5)
    lines = ["\t".join(f"{draw.randrange(50):08x}" for _ in range(5)) for _ in range(rows)]
    return "\n".join([*lines, "ragged", "é\t1\t2\t3\t4", ""]).encode()


def test_tensors_stay_on_the_device_and_waits_do_not_grow_with_the_block() -> None:
    waits = []
    with checked_device() as (device, checks):
        for rows in (10, 500):
            before = sum(checks.waits.values())
            block = _block(rows)
            found = scanned(block, 5, device)
            waits.append(sum(checks.waits.values()) - before)
            assert found is not None
            assert all(column.codes.device == device for column in found.columns.values())
            assert_equal(found, block, "\t", 5)
    assert waits[0] == waits[1]
    assert waits[0] <= 24


BLOCKS = {
    "short values": (b"12345678\t12345678\n" * 6_000, 2),
    "digits": (b"1\t\n" * 30_000, 2),
    "many columns": (b"\t".join([b"1", b"0"] * 7 + [b"68fd1e64"] * 26) + b"\n", 40),
    "empty lines": (b"\n" * 100_000, 1),
    "separators": (b"\t" * 100_000, 1),
    "long values": ((b"x" * 999 + b"\t\n") * 100, 2),
    "letters": ("é".encode() * 50_000, 1),
    "invalid bytes": (b"\xff" * 100_000, 1),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_scan_needs_at_most_100_bytes_of_memory_for_each_byte(name: str) -> None:
    block, width = BLOCKS[name]
    block = block * (-(-100_000 // len(block)))
    assert _peak_bytes(block, width) <= 100 * len(block)


def test_a_scan_of_many_columns_needs_no_more_memory_than_that_of_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block, width = BLOCKS["many columns"]
    monkeypatch.setattr(text_scan, "ROUND_FIELDS", 2_000)
    few = _peak_bytes(block * 500, width)
    monkeypatch.setattr(text_scan, "ROUND_FIELDS", 2**24)
    assert few <= 0.4 * _peak_bytes(block * 500, width)


def _peak_bytes(block: bytes, width: int) -> int:
    """The largest sum of the sizes of the tensors of a scan that exist at the same time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        assert scanned(block, width) is not None
    events = profiled.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(np.cumsum([size for _, size in changes]).max())
