"""How extensions are found: lazily, once, and with errors that name the packages."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import conf.plugins
from conf.errors import ConfigError
from conf.plugins import KINDS, OPERATOR, RULE, SINK
from conf.raw_types import RawTable
from conf.types import Candidates, Deliver, ListRules, ModelConfig, Train
from etl.operators.join_external import JoinExternal
from etl.ops import frame_operator_from_config, operator_from_config
from etl.readers.base import open_table
from scoring.candidates.source_settings import read_sources
from scoring.delivery.sinks import read_settings as read_sinks
from scoring.rules.request import read_rule_settings
from tests.extensions.packages import write_package, write_shop
from training.loop.forward import read_loss
from training.models import build_model
from training.settings import read_settings

Use = Callable[[str], object]
EXPLORATION = {"exploration": {"share": 0.1}}


def sources(name: str) -> Any:
    try:
        return read_sources(Candidates.model_validate({"sources": [{"source": name}]}))
    except ValueError as error:  # pydantic's; load_config makes a ConfigError of it
        raise ConfigError(str(error), "") from error


def rules(name: str) -> Any:
    try:
        return read_rule_settings(ListRules.model_validate({name: {}}))
    except ValueError as error:
        raise ConfigError(str(error), "") from error


def readers(name: str) -> Any:
    columns = [{"name": "a", "type": "int"}]
    try:
        table = RawTable.model_validate({"path": "p", "format": name, "columns": columns})
    except ValueError as error:
        raise ConfigError(str(error), "") from error
    return open_table(table, ("p",))


def losses(name: str) -> Any:
    try:
        train = Train(loss=name)
    except ValueError as error:
        raise ConfigError(str(error), "") from error
    return read_loss(train.loss)


# Kind -> a name that the checkout has, its module there, and what uses an extension with a name.
USES: dict[str, tuple[str, str, Use]] = {
    "operators": ("log1p", r"etl\.operators\.log1p", operator_from_config),
    "models": (
        "dlrm",
        r"training\.architectures\.dlrm",
        lambda name: read_settings(ModelConfig.model_validate({"architecture": name})),
    ),
    "rules": ("boost", r"scoring\.rules\.plugins\.boost", rules),
    "candidate_sources": ("popular", r"scoring\.candidates\.sources\.popular", sources),
    "sinks": (
        "jdbc",
        r"scoring\.delivery\.sinks\.jdbc",
        lambda name: read_sinks(Deliver.model_validate({"sinks": [{"name": "s", "kind": name}]}), {}),
    ),
    "readers": ("csv", r"etl\.readers\.formats\.csv", readers),
    "losses": ("bce", r"training\.losses\.bce", losses),
}


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that the entry points of all packages are read."""
    counted = list[int]()

    def entry_points() -> Any:
        counted.append(1)
        return importlib.metadata.entry_points()

    monkeypatch.setattr(conf.plugins, "entry_points", entry_points)
    conf.plugins._installed.cache_clear()
    return counted


def test_packages_are_read_once_and_only_for_unknown_names(scans: list[int], site: Path) -> None:
    operator_from_config("log1p")
    frame_operator_from_config({"dropna": {"columns": ["a"]}})
    read_settings(ModelConfig.model_validate({"architecture": "dlrm"}))
    read_rule_settings(ListRules.model_validate(EXPLORATION))
    read_sources(Candidates.model_validate({"sources": [{"source": "popular"}]}))
    read_sinks(Deliver(), {})
    JoinExternal(path="p", columns={"a": "int"}, format="orc")
    assert scans == []
    write_shop(site)
    operator_from_config("share_of_maximum")
    operator_from_config("share_of_maximum")
    read_settings(ModelConfig.model_validate({"architecture": "small_network"}))
    with pytest.raises(ConfigError):
        operator_from_config("nothing")
    assert scans == [1]


@pytest.mark.parametrize("kind", USES)
def test_an_unknown_name_is_refused_with_the_names_of_packages(kind: str, site: Path) -> None:
    write_package(site, "mine", {kind: {"of_a_package": "no_such_module"}})
    name, _, use = USES[kind]
    with pytest.raises(ConfigError) as refused:
        use("unknown")
    assert "'unknown'" in str(refused.value)
    assert "'of_a_package'" in str(refused.value)
    assert f"'{name}'" in str(refused.value)


@pytest.mark.parametrize("kind", USES)
def test_two_extensions_of_one_name_are_refused(kind: str, site: Path) -> None:
    write_package(site, "first", {kind: {"twin": "module_a"}})
    write_package(site, "second", {kind: {"twin": "module_b"}})
    with pytest.raises(ConfigError) as refused:
        USES[kind][2]("twin")
    for origin in ("module_a of the package first 1.0", "module_b of the package second 1.0"):
        assert origin in refused.value.problem


@pytest.mark.parametrize("kind", USES)
def test_an_extension_with_a_name_of_the_checkout_is_refused(kind: str, site: Path) -> None:
    name, module, use = USES[kind]
    write_package(site, "shadow", {kind: {name: "other_module"}})
    with pytest.raises(ConfigError, match=f"are named '{name}': {module} of the checkout and .*shadow 1.0"):
        use("unknown")


@pytest.mark.parametrize("kind", USES)
def test_a_module_that_cannot_be_imported_is_an_error_only_if_it_is_used(kind: str, site: Path) -> None:
    points = {"broken": f"broken_{kind}", "wrong": f"wrong_{kind}", "script": f"script_{kind}"}
    texts = {points["broken"]: "import no_such_module", points["wrong"]: "Settings = build = 3"}
    texts[points["script"]] = "raise SystemExit(0)"  # a job must not end as if it had succeeded
    write_package(site, "mine", {kind: points}, texts)
    use = USES[kind][2]
    assert {"broken", "wrong"} <= {*KINDS[kind].of_packages()}
    reason = "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"
    with pytest.raises(
        ConfigError, match=f"'broken', the module broken_{kind} of the package mine.*{reason}"
    ):
        use("broken")
    with pytest.raises(ConfigError, match=r"'script'.*cannot be imported: SystemExit: 0"):
        use("script")
    with pytest.raises(ConfigError, match=rf"'wrong', the module wrong_{kind} of the package mine 1\.0, "):
        use("wrong")


def test_a_name_that_is_not_the_operators_is_refused(shop: Path) -> None:
    write_package(shop.parent, "renamed", {"operators": {"other": "shop_extensions.share_of_maximum"}})
    with pytest.raises(ConfigError, match=r"'other', .*: its operator is named 'share_of_maximum'"):
        operator_from_config("other")


def test_operators_belong_to_one_section(shop: Path) -> None:
    with pytest.raises(ConfigError, match="prepare contains an unknown operator 'share_of_maximum'"):
        frame_operator_from_config("share_of_maximum")


def test_known_names_need_no_import(site: Path) -> None:
    write_package(site, "mine", {"sinks": {"kafka": "no_such_module"}})
    assert SINK.names() == ["csv", "jdbc", "json_lines", "kafka", "redis", "table"]


def test_a_digest_depends_on_all_files_of_the_package_and_on_no_others(shop: Path) -> None:
    (extension,) = OPERATOR.of_packages().values()
    first = extension.digest()
    (shop.parent / "other_package.py").write_text("VALUE = 1\n")
    assert extension.digest() == first
    (shop / "shared.py").write_text("VALUE = 1\n")
    changed = extension.digest()
    assert changed != first
    (shop / "shared.py").write_text("VALUE = 2\n")
    assert extension.digest() not in (first, changed)


def test_a_digest_of_one_module_ignores_its_neighbours(site: Path) -> None:
    write_package(site, "mine", {"rules": {"alone": "alone"}}, {"alone": "A = 1\n", "neighbour": "B = 1\n"})
    (extension,) = RULE.of_packages().values()
    first = extension.digest()
    (site / "neighbour.py").write_text("B = 2\n")
    assert extension.digest() == first
    (site / "alone.py").write_text("A = 22\n")
    assert extension.digest() != first


def test_a_namespace_package_counts_only_the_part_with_files(site: Path) -> None:
    for part in ("ours", "theirs"):
        (site / "company" / part).mkdir(parents=True)
        (site / "company" / part / "__init__.py").write_text("")
    write_package(site, "mine", {"rules": {"spaced": "company.ours"}})
    (extension,) = RULE.of_packages().values()
    first = extension.digest()
    (site / "company/theirs/__init__.py").write_text("A = 1\n")
    assert extension.digest() == first
    (site / "company/ours/__init__.py").write_text("A = 1\n")
    assert extension.digest() != first


def test_a_model_that_is_no_module_is_refused(site: Path) -> None:
    text = "from conf.types import Strict as Settings\ndef build(settings, inputs): return 3\n"
    write_package(site, "mine", {"models": {"three": "three"}}, {"three": text})
    from tests.training.feature_rows import make_spec

    with pytest.raises(ConfigError, match="the architecture three built a int, not a torch module"):
        build_model(ModelConfig.model_validate({"architecture": "three"}), make_spec(1, [4]))
