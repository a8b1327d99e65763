"""Each target holds for a second, and the harness finds what is planted."""

from __future__ import annotations

import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from etl.native import scan
from tests.fuzz import harness, sanitized
from tests.fuzz.__main__ import main
from tests.fuzz.harness import TARGETS, Target, repeat, run_target
from tests.fuzz.inputs import OPTION_BYTES, input_of
from tests.fuzz.planted import LIBRARY, SOURCE

pytestmark = pytest.mark.processes

needs_sanitizers = pytest.mark.skipif(not sanitized.runtime(), reason="the compiler has no sanitizers")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_sanitizers if TARGETS[name].libraries else ()) for name in TARGETS],
)
def test_a_target_holds(name: str) -> None:
    outcome = run_target(name, TARGETS[name], seconds=1)
    assert outcome.problem is None, (
        f"{outcome.problem}\n{outcome.report}\n{repeat(name, outcome.stored or Path())}"
    )
    assert outcome.inputs > 0


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled function with faults."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.cpp").write_text(SOURCE)
    sanitized.compile_library([folder / "planted.cpp"], folder / LIBRARY)
    return folder


PLANTED = Target("tests.fuzz.planted:Planted", "faults")


@needs_sanitizers
def test_a_read_beyond_the_input_is_found_stored_and_repeated(prefix: Path, tmp_path: Path) -> None:
    outcome = run_target("planted", PLANTED, seconds=60, seed=5, out=tmp_path, prefixes=(prefix,))
    assert outcome.problem == "a sanitizer reports an error"
    assert "heap-buffer-overflow" in outcome.report
    assert "planted.cpp:5" in outcome.report
    assert outcome.stored == tmp_path / f"planted-5-{outcome.inputs}.input"
    stored = outcome.stored.read_bytes()
    assert stored == input_of(5, outcome.inputs, [b"a long text without a fault", b"read"])
    assert f"--input {outcome.stored}'" in outcome.stored.with_suffix(".txt").read_text()
    again = run_target("planted", PLANTED, data=outcome.stored, out=tmp_path, prefixes=(prefix,))
    assert again.problem == outcome.problem
    assert again.stored == outcome.stored


@needs_sanitizers
@pytest.mark.parametrize(
    "text, problem",
    [
        (b"overflow", "a sanitizer reports an error"),
        (b"hang", "it hangs: an input takes more than 2 s"),
        (b"", None),
    ],
)
def test_other_faults_are_found(prefix: Path, tmp_path: Path, text: bytes, problem: str | None) -> None:
    data = tmp_path / "input"
    data.write_bytes(bytes(OPTION_BYTES) + text)
    outcome = run_target("planted", PLANTED, data=data, limit_s=2, out=tmp_path, prefixes=(prefix,))
    assert outcome.problem == problem
    assert ("signed integer overflow" in outcome.report) == (text == b"overflow")


def test_an_input_that_fails_ends_the_command_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "OUT", tmp_path)
    monkeypatch.setitem(TARGETS, "refusing", Target("tests.fuzz.planted:Refusing", "no ASCII"))
    assert main(["--target", "refusing", "--seconds", "60"]) == 1
    printed = capsys.readouterr().out
    assert "UnicodeDecodeError" in printed
    (stored,) = tmp_path.glob("*.input")
    assert f"repeat it: make fuzz ARGS='--target refusing --input {stored}'" in printed
    assert main(["--target", "refusing", "--input", str(stored)]) == 1
    stored.write_bytes(bytes(OPTION_BYTES))
    assert main(["--target", "refusing", "--input", str(stored)]) == 0
    assert main(["--list"]) == 0
    assert "scanner" in capsys.readouterr().out


def test_inputs_depend_only_on_the_seed() -> None:
    corpus = [b"one", b"another"]
    drawn = [[input_of(seed, number, corpus) for number in range(50)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({*drawn[0]}) == 50


def test_the_names_of_fields_exist_while_json_lines_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """`json-lines` found that the compiled scanner read the memory of an array that had been freed."""
    arrays: list[weakref.ref[pa.Array]] = []
    addresses, library = scan.string_addresses, scan.library

    def recorded(values: pa.StringArray) -> tuple[int, int]:
        arrays.append(weakref.ref(values))
        return addresses(values)

    class Checked:
        def __getattr__(self, name: str) -> object:
            return getattr(library(), name)

        def nightrank_scan_json(self, *arguments: object) -> object:
            assert arrays
            assert all(array() is not None for array in arrays)
            return library().nightrank_scan_json(*arguments)

    monkeypatch.setattr(scan, "string_addresses", recorded)
    monkeypatch.setattr(scan, "library", Checked)
    scanned = scan.scan_json(b'{"a": 1}\n', ["a"], lambda _: pytest.fail("no line is left over"))
    assert scanned.columns[0].to_pylist() == ["1"]
