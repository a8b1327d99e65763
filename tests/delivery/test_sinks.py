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
from storage import paths
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
    ((module, settings),) = sinks.read_settings(wanted, {})
    lists: PublishedLists = published(runs)
    assert sinks.deliver_to(module, settings, lists).rows == len(runs.lists)
    assert (tmp_path / "count").read_text() == str(len(runs.lists))
    with pytest.raises(ConfigError, match="count was checked"):
        sinks.check_access(wanted, {})
    with pytest.raises(ConfigError, match=r"unknown key deliver\.sinks\.0\.counter\.speed=3"):
        sinks.read_settings(section(kind="counter", file="f", speed=3), {})


@pytest.mark.parametrize("kind, other", [("jdbc", r"scoring\.delivery\.sinks\.jdbc"), ("mine", "sink_of_a")])
def test_two_sinks_of_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, other: str
) -> None:
    install(tmp_path, monkeypatch, "a", kind, "sink_of_a", COUNTER)
    install(tmp_path, monkeypatch, "b", kind, "sink_of_b", COUNTER)
    with pytest.raises(ConfigError, match=f"two sinks are named '{kind}': .*{other}"):
        sinks.read_settings(section(kind=kind, file="f"), {})


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
        sinks.read_settings(section(kind="broken", file="f"), {})


def test_a_sink_that_does_not_say_what_it_delivered_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = COUNTER.partition("def check")[0] + "def deliver(settings, lists):\n    pass\n"
    install(tmp_path, monkeypatch, "silent", "silent", "silent_sink", text)
    ((module, settings),) = sinks.read_settings(section(kind="silent", file="f"), {})
    lists: Any = None
    with pytest.raises(ConfigError, match="the sink mine returned a NoneType, not a Delivered"):
        sinks.deliver_to(module, settings, lists)


def test_every_job_refuses_a_sink_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"deliver\.sinks\.0\.kind='kafka' does not exist; known: .*'jdbc'"):
        sinks.read_settings(section(kind="kafka"), {})


FOLDERS = {"lake": "s3a://shop/lake", "data": "/srv/clicks"}
FILES: dict[str, Any] = {"kind": "csv", "name": "mail"}
TABLE: dict[str, Any] = {"kind": "table", "name": "warehouse"}
REDIS: dict[str, Any] = {"kind": "redis", "name": "online", "url": "redis://cache"}
JDBC: dict[str, Any] = {
    "kind": "jdbc",
    "name": "shop",
    "url": "jdbc:postgresql://db/shop",
    "table": "lists",
    "user": {"env": "A"},
    "password": {"env": "B"},
}


def read(*of_config: dict[str, Any]) -> list[Any]:
    wanted = Deliver.model_validate({"sinks": list(of_config)})
    return [settings for _, settings in sinks.read_settings(wanted, FOLDERS)]


@pytest.mark.parametrize(
    "first, second",
    [
        ({**FILES, "path": "x"}, {**FILES, "kind": "json_lines", "path": "./x/"}),
        ({**FILES, "path": "x"}, {**FILES, "path": "file://" + str(Path("x").absolute())}),
        ({**FILES, "path": "s3://shop/x"}, {**FILES, "path": "s3a://shop//x/"}),
        ({**FILES, "path": "{data}/x_users"}, {**TABLE, "path": "/srv/clicks/x", "features": ["users"]}),
        ({**TABLE, "table": "shop.lists"}, {**TABLE, "table": "shop.lists", "keep_dates": 3}),
        (REDIS, {**REDIS, "url": "redis://CACHE:6379/0/", "ttl_hours": 2}),
        (JDBC, {**JDBC, "url": f"{JDBC['url']}?sslmode=disable"}),
    ],
)
def test_two_sinks_cannot_have_the_same_place(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Each of them would replace what the other has delivered, and the job would call both delivered."""
    with pytest.raises(ConfigError, match=r"the sink two delivers to .*, like the sink one: each would"):
        read({**first, "name": "one"}, {**second, "name": "two"})


def test_sinks_with_places_of_their_own_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x")
    read(
        {**FILES, "path": str(tmp_path / "x")},
        {**FILES, "name": "all", "path": str(tmp_path / "x2")},
        {**TABLE, "path": "s3a://shop/x"},
        REDIS,
        {**REDIS, "name": "other", "url": "redis://cache/1"},
        {**REDIS, "name": "third", "prefix": "b"},
        JDBC,
        {**JDBC, "name": "fourth", "table": "b"},
    )
    with pytest.raises(ConfigError, match="like the sink mail"):
        read({**FILES, "path": str(tmp_path / "x")}, {**TABLE, "path": str(tmp_path / "link")})


@pytest.mark.parametrize("path", ["", "/recommendations", "/users/w-1", "/_data/recommendations"])
def test_a_table_of_the_lake_is_no_place_of_a_sink(path: str) -> None:
    """A delivery would replace the manifest of the table."""
    for start in ("{lake}", "s3://shop/lake/"):
        with pytest.raises(ConfigError, match=r"the sink mail delivers to .*, but jobs write this folder of"):
            read({**FILES, "path": f"{start}{path}"})


def test_the_folders_of_the_lake_are_those_that_its_layout_describes() -> None:
    described = re.findall(r"^([a-z_-]+(?:\|[a-z]+)?)/|^_data/| ([a-z]+)/ ", str(paths.__doc__), re.MULTILINE)
    names = {name for pair in described for one in pair for name in one.split("|") if name}
    assert names | {"logs", paths.DATA} == paths.FOLDERS


def test_the_lake_and_the_data_are_filled_into_the_path_of_a_sink() -> None:
    sinks = read(
        {**FILES, "path": "{lake}-mail"},
        {**FILES, "name": "x", "path": "{data}/x"},
        {**TABLE, "path": "{data}"},
    )
    assert [sink.path for sink in sinks] == ["s3a://shop/lake-mail", "/srv/clicks/x", "/srv/clicks"]
    for sink in (FILES, TABLE):
        with pytest.raises(ConfigError, match=r"must not contain braces, except {lake} and {data}"):
            read({**sink, "path": "/srv/mail/{date}"})


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
    ((module, settings),) = sinks.read_settings(section(kind="parquet", path=str(tmp_path / "out")), {})
    sinks.deliver_to(module, settings, published(runs))
    partition = Partition("mine", RUN_DATE, str(tmp_path / f"out/dt={RUN_DATE}"))
    first = read_manifest(partition)
    order = ["user_id", "position"]
    written = runs.rows(partition).sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(written, runs.lists[written.columns].sort_values(order, ignore_index=True))
    sinks.deliver_to(module, settings, published(runs))
    assert read_manifest(partition) == first
