"""Sinks are found by name, in the checkout and by entry points of other packages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conf.errors import ConfigError
from conf.plugins import SINK
from conf.types import Deliver
from scoring.delivery import sinks
from scoring.delivery.published_lists import PublishedLists
from storage.manifest import read_manifest
from storage.paths import Partition
from tests.conftest import ROOT
from tests.delivery.conftest import PublishedRuns
from tests.delivery.test_json_lines import published
from tests.scoring.scoring_lake import RUN_DATE

COUNTER = """
from conf.types import SinkSettings
from scoring.delivery.published_lists import Delivered

class Settings(SinkSettings):
    \"\"\"Counts entries.\"\"\"
    file: str

def check(settings):
    from conf.errors import ConfigError
    raise ConfigError(f"{settings.file} was checked", "nothing")

def deliver(settings, lists):
    open(settings.file, "w").write(str(lists.frame.count()))
    return Delivered(settings.file, lists.manifest.rows)
"""


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, kind: str, module: str, text: str
) -> None:
    """Installs a package with one module and one entry point, for the time of the test."""
    (folder / f"{module}.py").write_text(text)
    details = folder / f"{package}-1.0.dist-info"
    details.mkdir()
    (details / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (details / "entry_points.txt").write_text(f"[nightrank.sinks]\n{kind} = {module}\n")
    monkeypatch.syspath_prepend(str(folder))


def section(**settings: Any) -> Deliver:
    return Deliver.model_validate({"sinks": [{"name": "mine", **settings}]})


def test_a_package_outside_of_the_checkout_adds_a_sink(
    runs: PublishedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "counting", "counter", "counting_sink", COUNTER)
    assert SINK.names() == ["counter", "csv", "jdbc", "json_lines", "redis", "table"]
    wanted = section(kind="counter", file=str(tmp_path / "count"))
    ((module, settings),) = sinks.read_settings(wanted)
    lists: PublishedLists = published(runs)
    assert sinks.deliver_to(module, settings, lists).rows == len(runs.lists)
    assert (tmp_path / "count").read_text() == str(len(runs.lists))
    with pytest.raises(ConfigError, match="count was checked"):
        sinks.check_access(wanted)
    with pytest.raises(ConfigError, match=r"unknown key deliver\.sinks\.0\.counter\.speed=3"):
        sinks.read_settings(section(kind="counter", file="f", speed=3))


@pytest.mark.parametrize("kind, other", [("jdbc", r"scoring\.delivery\.sinks\.jdbc"), ("mine", "sink_of_a")])
def test_two_sinks_of_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, other: str
) -> None:
    install(tmp_path, monkeypatch, "a", kind, "sink_of_a", COUNTER)
    install(tmp_path, monkeypatch, "b", kind, "sink_of_b", COUNTER)
    with pytest.raises(ConfigError, match=f"two sinks are named '{kind}': .*{other}"):
        sinks.read_settings(section(kind=kind, file="f"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: .*no_such_module"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("Settings = dict", r"lacks a class Settings\(SinkSettings\)"),
        (COUNTER.partition("def deliver")[0], "lacks a function deliver"),
    ],
)
def test_a_module_that_is_no_sink_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    module = f"broken_{abs(hash(text))}"
    install(tmp_path, monkeypatch, "broken", "broken", module, text)
    with pytest.raises(ConfigError, match=f"the module {module} of the package broken.*{message}"):
        sinks.read_settings(section(kind="broken", file="f"))


def test_a_sink_that_does_not_say_what_it_delivered_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = COUNTER.partition("def check")[0] + "def deliver(settings, lists):\n    pass\n"
    install(tmp_path, monkeypatch, "silent", "silent", "silent_sink", text)
    ((module, settings),) = sinks.read_settings(section(kind="silent", file="f"))
    lists: Any = None
    with pytest.raises(ConfigError, match="the sink mine returned a NoneType, not a Delivered"):
        sinks.deliver_to(module, settings, lists)


def test_every_job_refuses_a_sink_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"deliver\.sinks\.0\.kind='kafka' does not exist; known: .*'jdbc'"):
        sinks.read_settings(section(kind="kafka"))


@pytest.mark.processes
def test_settings_of_other_sinks_are_read_without_their_packages() -> None:
    """No package of a sink is imported before it is configured, and the client of Redis only when it is used."""
    program = (
        "import json, sys; from conf.types import Deliver; import scoring.delivery.sinks as s;"
        "before = sorted(n for n in sys.modules if n.startswith('scoring.delivery.sinks.'));"
        "print(json.dumps([before, 'redis' in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == [[], False]


def test_the_documented_sink_publishes_files_of_its_own(
    runs: PublishedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/delivery.md, unchanged: whole, and not written again if nothing changed."""
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/delivery.md").read_text(), re.DOTALL)
    install(tmp_path, monkeypatch, "files", "parquet", "parquet_sink_of_the_page", text)
    ((module, settings),) = sinks.read_settings(section(kind="parquet", path=str(tmp_path / "out")))
    sinks.deliver_to(module, settings, published(runs))
    partition = Partition("mine", RUN_DATE, str(tmp_path / f"out/dt={RUN_DATE}"))
    first = read_manifest(partition)
    order = ["user_id", "position"]
    written = runs.rows(partition).sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(written, runs.lists[written.columns].sort_values(order, ignore_index=True))
    sinks.deliver_to(module, settings, published(runs))
    assert read_manifest(partition) == first
