from __future__ import annotations

import json
import platform

import pytest

from benchmarks.etl import TARGETS, main, verdict
from benchmarks.report import machine, summary_line, table


def test_the_summary_line_is_one_json_object_with_the_agreed_keys() -> None:
    line = summary_line(
        "etl", machine(2, ("pyarrow",)), {"seconds": 1.0}, {}, {"a": 1.23456, "b": None}, rows=5
    )
    assert "\n" not in line
    summary = json.loads(line)
    assert {"benchmark", "machine", "ours", "peers", "ratios"} <= set(summary)
    assert summary["ratios"] == {"a": 1.235, "b": None}
    assert summary["machine"]["packages"]["pyarrow"]


def test_a_figure_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        summary_line("etl", {}, {"seconds": float("nan")}, {}, {})


def test_the_machine_has_no_name() -> None:
    assert platform.node() not in machine(1).values()


def test_columns_of_the_table_are_aligned() -> None:
    lines = table(["who", "s"], [["ours", "1.0"], ["them", "10.0"]]).splitlines()
    assert lines == ["who      s", "----  ----", "ours   1.0", "them  10.0"]


@pytest.mark.parametrize(
    "ratio, facts, words",
    [
        (6.5, {}, ["6.50 times faster", "met"]),
        (5.0, {}, ["5.00 times faster", "MISSED"]),
        (0.5, {}, ["wins", "2.00 times slower", "MISSED"]),
        (None, {"reason": "not installed"}, ["not measured", "not installed"]),
        (None, {"reason": "did not end", "ratio_at_least": 7.1}, ["at least 7.1"]),
    ],
)
def test_the_verdict_says_who_wins(ratio: float | None, facts: dict[str, object], words: list[str]) -> None:
    message = verdict("nvidia_recipe", ratio, facts, 6.0)
    assert all(word in message for word in words)


def test_every_target_names_a_peer_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    assert all(name in output for name in TARGETS)
