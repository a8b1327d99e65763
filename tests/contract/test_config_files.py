"""Files that are no configuration, and `extends` that never ends: a ConfigError names the file."""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.load import load_config, parse_date, read_yaml
from conf.names import days_since_epoch

GOOD = Path("conf/datasets/criteo.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content, problem",
    [
        (
            GOOD.replace("criteo", "crité").encode("latin-1", "replace"),
            r"is not UTF-8: byte 0xe9 in line \d+",
        ),
        (GOOD.encode("utf-16"), r"is not UTF-8: byte 0xff in line 1"),
        (bytes(range(256)) * 8, r"is not UTF-8"),
        (b"\x1f\x8b\x08\x00garbage", r"is not UTF-8: byte 0x8b in line 1"),
        (b"name: a\0b\n", r"is not YAML: .*special characters are not allowed"),
        (b"name:\n\t- x\n", r"is not YAML: (.|\n)*cannot start any token"),
        (b"", r"contains a NoneType, not a mapping"),
        (b"# only a comment\n", r"contains a NoneType, not a mapping"),
        (b"just words", r"contains a str, not a mapping"),
        (b"a: 1\na: 2\n", r"'a' occurs twice"),
        (b"a: {b: 1, b: 2}\n", r"'b' occurs twice"),
        (b"? [a]\n: 1\n", r"the key \['a'\] is not text"),
        (b"? {a: 1}\n: 1\n", r"the key \{'a': 1\} is not text"),
        (b"day: 2026-13-45\n", r"is not YAML: month must be in 1\.\.12"),
        (b"n: 0x_\n", r"is not YAML"),
        (b"n: " + b"1" * 5000 + b"\n", r"is not YAML: Exceeds the limit"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, r"nested too deeply"),
        (b"a: !!python/object/apply:os.system [id]\n", r"is not YAML: could not determine a constructor"),
        (b"a: *b\n", r"undefined alias"),
        (b"a: &b [*b]\n", r"an alias contains itself"),
        (b"a: &b {c: 1}\nd: {<<: *b}\n", r"the key << is not supported: write the keys"),
        (b"a: 1\n---\na: 2\n", r"expected a single document"),
        (b"1: 2\n", r"log is missing"),
        (b"model: ''\n", r"model='' does not name a file"),
        (b'model: "a\\0b"\n', r"model='a\\x00b' does not name a file"),
        (b"extends: [a]\n", r"extends=\['a'\] does not name a file"),
        (b"extends: 3\n", r"extends=3 does not name a file"),
        (b"extends: ''\n", r"extends='' does not name a file"),
        (b"extends: .\n", r"cannot read .*: Is a directory"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(str(path))
    assert str(path.parent) in caught.value.problem


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        load_config(str(tmp_path))


def test_a_loop_of_symbolic_links_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match=f"cannot read {path}: Too many levels of symbolic links"):
        load_config(str(path))


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "marked.yaml"
    path.write_bytes(
        b"\xef\xbb\xbf" + GOOD.replace("../models/dlrm_small.yaml", "{architecture: deepfm}").encode()
    )
    assert load_config(str(path)).name == "criteo"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_files_that_extend_each_other_in_a_circle_are_refused(tmp_path: Path, length: int) -> None:
    for number in range(length):
        (tmp_path / f"c{number}.yaml").write_text(f"extends: ./c{(number + 1) % length}.yaml\n")
    with pytest.raises(ConfigError, match="files extend each other in a circle") as caught:
        load_config(str(tmp_path / "c0.yaml"))
    assert caught.value.problem.count("c0.yaml") == 2
    assert all(f"c{number}.yaml" in caught.value.problem for number in range(length))


def bomb(levels: int) -> str:
    """A few hundred bytes whose aliases stand for 9 ** levels values."""
    names = "abcdefghijklmnop"[:levels]
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


def refused(path: Path, text: str) -> str:
    """The message for a file that is refused, in less than a second."""
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError) as raised:
        load_config(str(path))
    assert time.process_time() - began < 5
    assert len(str(raised.value)) < 1000
    assert str(path) in str(raised.value)
    return raised.value.problem


@pytest.mark.parametrize(
    "text, problem",
    [
        (bomb(9), "a value has more than 4,194,304 characters, with the values that aliases repeat"),
        (bomb(16), "a value has more than 4,194,304 characters, with the values that aliases repeat"),
        (f"a: &a {'x' * 9000}\nb: [{', '.join(['*a'] * 900)}]", "a value has more than 4,194,304"),
        ("a: &a [*a]", "an alias contains itself: a"),
        ("a: " + "[" * 4000, "values are nested too deeply: more than 50 levels"),
        ("a: " + "{a: " * 4000, "values are nested too deeply: more than 50 levels"),
        (f"? {'k' * 5000}\n: 1", "(5,002 characters) …kkkkkkkkkkkkkkkk' has more than 1,000 characters"),
        (f"{'k' * 900}: 1", "(900 characters)"),
        (f"name: {'y' * 500_000}", "(500,002 characters)"),
        ("name: x\n" + "".join(f"key{number}: 1\n" for number in range(5000)), "and 4,984 more"),
        (
            " " * (1 << 20) + "name: x",
            "has more than 1,048,576 bytes, the largest size of a configuration file",
        ),
    ],
)
def test_files_beyond_the_limits_are_refused_at_once(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(tmp_path / "a.yaml", text)


def test_overrides_beyond_the_limits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: x")
    inline = bomb(9).replace("\n", ", ")
    for override, problem in (
        (f"train={{{inline}}}", "a value has more than"),
        (f"train={'[' * 3000}", "nested too deeply: more than 50 levels"),
        (f"{'k' * 100_000}=1", "(100,000 characters)"),
        ("k" * 100_000, "(100,002 characters)"),
        (f"name.{'k' * 100_000}=1", "(100,009 characters)"),
        (f"train={'x' * (1 << 21)}", "at most 1,048,576 are allowed"),
    ):
        with pytest.raises(ConfigError, match=re.escape(problem)) as raised:
            load_config(str(path), [override])
        assert len(str(raised.value)) < 2000


def test_aliases_within_the_limits_are_values(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: &a [1, {b: &b x}]\nc: [*a, *a, *b]\n")
    part = [1, {"b": "x"}]
    assert read_yaml(path) == {"a": part, "c": [part, part, "x"]}


def test_a_file_may_be_extended_by_several(tmp_path: Path) -> None:
    """The same file twice on the way up is no circle unless it comes back to itself."""
    (tmp_path / "base.yaml").write_text(GOOD.replace("../models/dlrm_small.yaml", "{architecture: deepfm}"))
    (tmp_path / "middle.yaml").write_text("extends: base.yaml\n")
    (tmp_path / "top.yaml").write_text("extends: middle.yaml\nname: top\n")
    assert load_config(str(tmp_path / "top.yaml")).name == "top"


def test_a_date_that_yaml_reads_as_one_is_a_date(tmp_path: Path) -> None:
    generate = load_config("conf/datasets/generated.yaml", ["generate.first_date=2026-03-04"]).generate
    assert generate is not None
    assert generate.first_date == "2026-03-04"
    path = tmp_path / "dated.yaml"
    path.write_text(
        f"extends: {Path('conf/datasets/generated.yaml').resolve()}\ngenerate: {{first_date: 2026-03-05}}\n"
    )
    dated = load_config(str(path)).generate
    assert dated is not None
    assert dated.first_date == "2026-03-05"


@pytest.mark.parametrize(
    "text",
    [
        "../../x",
        "2026-1-1",
        "2026-01-01T00:00",
        "20260101",
        "9999-12-31",
        "1969-12-31",
        "",
        "2026-W01-1",
        "\x1b[2J",
    ],
)
def test_a_run_date_is_an_iso_date(text: str) -> None:
    with pytest.raises(ConfigError, match="--run-date"):
        parse_date(text)
    assert parse_date("2026-01-31") == "2026-01-31"


def test_a_run_date_later_than_tomorrow_needs_the_option_future() -> None:
    today = datetime.now(UTC).date()
    for back in (-1, 0, 1, 9000):  # tomorrow is today in the time zones that are ahead of UTC
        day = (today - timedelta(days=back)).isoformat()
        assert parse_date(day) == day
    for ahead in (3, 400, 13_000):
        day = (today + timedelta(days=ahead)).isoformat()
        with pytest.raises(ConfigError, match=rf"--run-date '{day}' is later than tomorrow .*\n.*--future"):
            parse_date(day)
        assert parse_date(day, future=True) == day
    with pytest.raises(ConfigError, match="is not a date"):
        parse_date("2062-13-01", future=True)


def test_days_are_counted_from_1970() -> None:
    assert [days_since_epoch(day) for day in ("1970-01-01", "1970-01-02", "2026-01-01")] == [0, 1, 20454]
    assert days_since_epoch(date(2026, 1, 1)) == 20454


def test_a_value_that_a_caller_has_changed_is_read_again_as_it_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: &first {b: [1]}\nc: *first\n")
    first = read_yaml(path)
    first["a"]["b"].append(2)
    del first["c"]
    assert read_yaml(path) == {"a": {"b": [1]}, "c": {"b": [1]}}
    path.write_text("a: 3\n")
    assert read_yaml(path) == {"a": 3}
