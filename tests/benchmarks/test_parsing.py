"""The benchmark of the two parsers inside frames, on a small log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, environment

pytestmark = pytest.mark.processes


def test_the_benchmark_compares_both_parsers_in_one_json_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/parsing.py"), "--rows", "4000", "--repeats", "1"]
    env = {**environment(), "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    summary = json.loads(run.stdout.splitlines()[-1])
    assert (summary["benchmark"], summary["rows"]) == ("parsing", 1000)
    assert set(summary["ratios"]) == {"all_columns", "four_columns"}
    for name, ratio in summary["ratios"].items():
        peer = summary["peers"]["spark_expressions"][name]
        assert ratio == pytest.approx(peer / summary["ours"][name], rel=0.01)
    assert list(tmp_path.rglob("clicks.tsv")) != []
