"""Every plug-in of the checkout is described, and reading names, settings and schemas imports neither torch nor Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conf.plugins import KINDS, LOSS, MODEL, READER, RULE, SINK, SOURCE, Kind, Plugin
from conf.raw_types import Strict
from tests.conftest import ROOT
from tests.contract.choices import EXAMPLES, documents

# Kinds whose modules have a class Settings.
WITH_SETTINGS = (READER, MODEL, LOSS, SOURCE, RULE, SINK)
PLUGINS = [plugin for kind in WITH_SETTINGS for plugin in kind.plugins()]
NO_HEAVY_IMPORTS = """
import sys
from conf.plugins import KINDS
from jobs.reference import config_schema, configuration_page, model_schema, models_page
for kind in KINDS.values():
    for plugin in kind.plugins():
        plugin.load_settings()
for build in (config_schema, model_schema, configuration_page, models_page):
    build()
print(sorted({"torch", "pyspark"} & {*sys.modules}))
"""


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: f"{plugin.kind}.{plugin.name}")
def test_a_plugin_is_described(plugin: Plugin) -> None:
    settings: type[Strict] = plugin.settings(Strict)
    assert plugin.load_settings().__doc__
    assert settings.__doc__
    assert settings.__module__ == plugin.load_settings().__name__
    assert [name for name, field in settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_a_folder_contains_only_plugins(kind: Kind) -> None:
    folder = ROOT / kind.folder.replace(".", "/")
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {*kind.built_in()}


def test_every_rule_has_an_example() -> None:
    """Examples of the other kinds are choices (tests/contract/test_choices.py)."""
    examples = documents((ROOT / EXAMPLES).read_text(encoding="utf-8"))
    shown = {name for one in examples for name in (one.get("score", {}).get("rules") or {})}
    assert {*RULE.built_in()} <= shown


@pytest.mark.processes
def test_names_settings_and_schemas_need_neither_torch_nor_spark() -> None:
    done = subprocess.run([sys.executable, "-c", NO_HEAVY_IMPORTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
