"""What jobs do with extensions: every job checks their settings, and tables depend on their code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conf.errors import ConfigError
from conf.types import Config
from jobs.checks import check_config
from scoring.candidates.candidate_tables import CandidateTables
from scoring.rules.attributes import read_rules
from storage.run_context import RunContext
from tests.etl.ops.rows import make_config

RUN_DATE = "2026-01-05"
GROUPS = [{"columns": ["I1"], "kind": "dense", "ops": ["share_of_maximum"]}]


def config_of(folder: Path, source: dict[str, Any], season: dict[str, Any], **sections: Any) -> Config:
    candidates = {"sources": [{"source": "newest", **source}, {"source": "popular"}]}
    return make_config(folder, GROUPS, candidates=candidates, score={"rules": {"season": season}}, **sections)


def test_every_job_checks_settings_of_packages(shop: Path, tmp_path: Path) -> None:
    check_config(config_of(tmp_path, {}, {"season": "a"}))
    with pytest.raises(ConfigError, match=r"unknown key candidates\.sources\.0\.newest\.clicks=1"):
        check_config(config_of(tmp_path, {"clicks": 1}, {"season": "a"}))
    with pytest.raises(ConfigError, match=r"score\.rules\.season\.season is missing"):
        check_config(config_of(tmp_path, {}, {"factor": 2}))
    model = {"architecture": "small_network", "deep": [8]}
    with pytest.raises(ConfigError, match=r"architecture small_network: unknown key model\.deep"):
        check_config(config_of(tmp_path, {}, {"season": "a"}, model=model))


def test_inputs_of_candidates_and_lists_depend_on_the_code_of_packages(shop: Path, tmp_path: Path) -> None:
    manifest: Any = SimpleNamespace(digest="users")
    dataset: Any = SimpleNamespace(digest="dataset")
    tables = CandidateTables(manifest, [], None, {}, None, None)

    def inputs(config: Config) -> tuple[dict[str, str], dict[str, str]]:
        context = RunContext("test", config, RUN_DATE)
        return tables.inputs(context, dataset), read_rules(context)[1]

    plain = make_config(tmp_path, [{"columns": ["I1"], "kind": "dense", "ops": ["fill"]}])
    of_packages = config_of(tmp_path, {}, {"season": "a"})
    before, plain_before = inputs(of_packages), inputs(plain)
    (shop / "__init__.py").write_text("VERSION = 2\n")
    after = inputs(of_packages)
    assert [first != second for first, second in zip(before, after, strict=True)] == [True, True]
    assert inputs(plain) == plain_before
    assert set(plain_before[0]) == {"users", "dataset", "config"}
    assert plain_before[1] == {}
