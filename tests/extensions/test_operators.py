"""The operator of a package: fitted, applied, stored and read like those of etl/ops, and part of versions."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import nightrank
from conf.errors import ConfigError, raised_in
from conf.plugins import OPERATOR as OPERATORS
from conf.types import Config
from etl.fit.fit_workflow import workflow_version
from etl.ops import frame_operator_from_config, operator_from_config
from etl.ops.pages import pages
from etl.raw.files import RawFiles, require_raw
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import plan_of, preparation
from etl.workflow.fitted_workflow import load_local
from jobs.reference import config_schema
from storage.paths import LakePaths
from tests.conftest import ROOT
from tests.contract.test_config import SMALL
from tests.etl.log_rows import rows_of_log
from tests.etl.ops.case import assert_same
from tests.etl.ops.rows import (
    DAYS,
    TEST_DAY,
    by_day,
    features_of,
    fit_rows,
    make_config,
    make_rows,
    to_spark,
)
from tests.extensions.conftest import AddToCheckout
from tests.extensions.packages import forget_shop, write_package

GROUPS: list[dict[str, Any]] = [
    {"columns": ["I1", "X"], "kind": "dense", "ops": ["share_of_maximum", "fill", {"clip": {"min": 0}}]}
]
PLAIN: list[dict[str, Any]] = [{"columns": ["I1"], "kind": "dense", "ops": ["fill_median", "log1p"]}]
FRAME: Any = pd.DataFrame({"I1": [1, 8, 4], "X": [0.5, 0.25, 0.0]})
# Versions of PLAIN, fitted from days without rows and on FRAME, that releases without extensions compute.
PLAIN_VERSION, PLAIN_FRAME_VERSION = "16c2326107c4eb1d", "bdd928231092e603"
ROWS = make_rows(DAYS[0], 30, seed=5)


def remove_shop(shop: Path) -> None:
    """Uninstalls the package in this process."""
    for file in (shop.parent / "shop_extensions-1.0.dist-info").iterdir():
        file.unlink()
    (shop.parent / "shop_extensions-1.0.dist-info").rmdir()
    shop.rename(shop.parent.parent / "removed")
    forget_shop()


def edit(shop: Path) -> None:
    """Changes the code of the package, but not of the module of the operator."""
    (shop / "__init__.py").write_text("VERSION = 2\n")


OPERATOR = """
from dataclasses import dataclass
from typing import ClassVar
from nightrank.extending import Operator, RowWise

@dataclass(frozen=True)
class FittedWrong(RowWise):
    name: ClassVar[str] = "wrong"
    def expression(self, *values):
        return values[0]
    def compute(self, values, tables):
        return {computed}

class Wrong(Operator):
    name: ClassVar[str] = "wrong"
    page: ClassVar[str] = "numbers"
    def fit(self, step, statistics):
        return {fitted}
"""


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"computed": "values[0]"}, "the operator wrong did not compute 1 Arrow arrays of 3 values"),
        ({"computed": "[values[0][:1]]"}, "the operator wrong did not compute 1 Arrow arrays of 3 values"),
        ({"computed": "values * 2"}, "the operator wrong did not compute 1 Arrow arrays of 3 values"),
        ({"computed": "None"}, "the operator wrong did not compute 1 Arrow arrays of 3 values"),
        ({"fitted": "None"}, "the method `fit` of the operator wrong returned a NoneType, not a Fitted"),
    ],
)
def test_an_operator_that_breaks_the_contract_is_named(
    site: Path, wrong: dict[str, str], message: str
) -> None:
    """An array with fewer values would otherwise become a table with fewer rows."""
    results = {"computed": "values", "fitted": "FittedWrong(step.inputs, step.outputs)"} | wrong
    write_package(site, "wrong", {"operators": {"wrong": "wrong"}}, {"wrong": OPERATOR.format(**results)})
    group = {"columns": ["X"], "kind": "dense", "ops": ["wrong"]}
    with pytest.raises(ConfigError, match=message):
        nightrank.Workflow([group]).fit(FRAME).transform(FRAME)


@pytest.mark.parametrize("engine", ["sql", "arrow"])
def test_both_engines_fit_and_apply_it(
    spark: SparkSession, shop: Path, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine `arrow` computes in Python workers, which find the package on their import path."""
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(shop.parent))
    config = make_config(tmp_path, GROUPS, workflow={"engine": engine})
    fitted = fit_rows(spark, config, by_day(spark, ROWS))
    expected = {}
    for name in ("I1", "X"):
        largest = max(row[name] for row in ROWS if row[name] is not None)
        expected[name] = [max((row[name] or 0) / largest, 0) for row in ROWS]
    assert_same(features_of(fitted, to_spark(spark, ROWS)), expected)
    stored = load_local(LakePaths(config.lake), fitted.version)
    assert stored.chains == fitted.chains
    (step, *_) = stored.chains[0].to_json()["steps"]
    assert (step["op"], step["package"]) == ("share_of_maximum", "shop-extensions")
    assert all("package" not in other for other in stored.chains[0].to_json()["steps"][1:])


def test_a_worker_without_the_package_names_it(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path, GROUPS, workflow={"engine": "arrow"})
    fitted = fit_rows(spark, config, by_day(spark, ROWS))
    with pytest.raises(PythonException) as failed:
        features_of(fitted, to_spark(spark, make_rows(TEST_DAY, 3, seed=1)))
    error = raised_in(str(failed.value))
    assert isinstance(error, ConfigError)
    assert "'share_of_maximum' of the package shop-extensions, which is not installed" in error.problem


def test_a_workflow_on_a_frame_is_saved_and_loaded_only_with_the_package(shop: Path, tmp_path: Path) -> None:
    workflow = nightrank.Workflow(GROUPS)
    features: Any = workflow.fit_transform(FRAME)
    np.testing.assert_allclose(features["I1"], FRAME["I1"] / 8)
    np.testing.assert_allclose(features["X"], FRAME["X"] / 0.5)
    workflow.save(tmp_path / "saved")
    forget_shop()
    loaded: Any = nightrank.Workflow.load(tmp_path / "saved").transform(FRAME)
    pd.testing.assert_frame_equal(loaded, features)
    remove_shop(shop)
    with pytest.raises(
        ConfigError, match="operator 'share_of_maximum' of the package shop-extensions, which"
    ):
        nightrank.Workflow.load(tmp_path / "saved")


def test_the_operator_of_another_package_is_not_taken(shop: Path, tmp_path: Path) -> None:
    workflow = nightrank.Workflow(GROUPS).fit(FRAME)
    workflow.save(tmp_path / "saved")
    text = (shop / "share_of_maximum.py").read_text()
    remove_shop(shop)
    points = {"operators": {"share_of_maximum": "imitation"}}
    write_package(shop.parent, "imitation", points, {"imitation": text})
    with pytest.raises(
        ConfigError, match=r"of the package shop-extensions, but the installed operator is .* imitation 1\.0"
    ):
        nightrank.Workflow.load(tmp_path / "saved")


def test_versions_depend_on_the_code_of_used_packages_only(shop: Path, tmp_path: Path) -> None:
    def versions() -> list[str]:
        computed = []
        for number, groups in enumerate((GROUPS, PLAIN)):
            config = make_config(tmp_path / str(number), groups)
            computed += [
                workflow_version(plan_of(config), None, []),
                nightrank.Workflow(groups).fit(FRAME).version,
            ]
        return computed

    first = versions()
    edit(shop)
    second = versions()
    assert [before != after for before, after in zip(first, second, strict=True)] == [
        True,
        True,
        False,
        False,
    ]


def test_the_versions_of_workflows_without_extensions_stay(tmp_path: Path) -> None:
    config = make_config(tmp_path, PLAIN)
    assert workflow_version(plan_of(config), None, []) == PLAIN_VERSION
    assert nightrank.Workflow(PLAIN).fit(FRAME).version == PLAIN_FRAME_VERSION


FILTER = """
from collections.abc import Mapping
from typing import ClassVar
import pyarrow as pa
import pyarrow.compute as pc
from nightrank.extending import RowFilter, Type

class EvenRows(RowFilter):
    '''Keeps rows with an even number.'''
    name: ClassVar[str] = "even_rows"
    column: str

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        return columns

    @property
    def reason(self) -> str:
        return "odd"

    def inputs(self, columns: Mapping[str, Type]):
        return (self.column,)

    def keeps_rows(self, rows: Mapping[str, pa.Array], count: int, columns: Mapping[str, Type]):
        return pc.equal(pc.bit_wise_and(rows[self.column], 1), 0)
"""
OLD_FILTER = (
    FILTER[: FILTER.index("    def inputs")]
    + """
    def keeps(self, columns: Mapping[str, Type]):
        raise AssertionError("a condition on a frame")
"""
)


def test_an_operator_of_prepare_changes_what_partitions_depend_on(site: Path, tmp_path: Path) -> None:
    write_package(site, "rows", {"operators": {"even_rows": "even_rows"}}, {"even_rows": FILTER})
    config = make_config(tmp_path, PLAIN, prepare=[{"even_rows": {"column": "I1"}}])
    assert [row_filter.reason for row_filter in plan_of(config).filters] == ["odd"]
    first = preparation(config)
    (site / "even_rows.py").write_text(f"{FILTER}\n")
    assert preparation(config) != first
    assert preparation(make_config(tmp_path, PLAIN)) == {}


def test_a_filter_of_a_package_drops_rows(site: Path, tmp_path: Path) -> None:
    """Its workers import the package; null is not kept."""
    write_package(site, "rows", {"operators": {"even_rows": "even_rows"}}, {"even_rows": FILTER})
    config = make_config(tmp_path, PLAIN, prepare=[{"even_rows": {"column": "I1"}}])
    raw = _log_of(config, tmp_path, [1, 2, None, 4, 7, 8])
    rows = rows_of_log(config, raw)
    assert rows["_reason"].to_pylist() == ["odd", None, "odd", None, "odd", None]


def test_a_filter_without_a_form_for_blocks_is_refused(site: Path, tmp_path: Path) -> None:
    write_package(site, "rows", {"operators": {"even_rows": "even_rows"}}, {"even_rows": OLD_FILTER})
    config = make_config(tmp_path, PLAIN, prepare=[{"even_rows": {"column": "I1"}}])
    with pytest.raises(ConfigError, match=r"even_rows cannot filter rows .* does not define `inputs`"):
        rows_of_log(config, _log_of(config, tmp_path, [1]))


def _log_of(config: Config, folder: Path, numbers: Sequence[int | None]) -> RawFiles:
    """A day whose column I1 has these values."""
    path = folder / f"dt={TEST_DAY}/log.tsv"
    path.parent.mkdir(parents=True)
    names = config.log.names
    lines = [
        "\t".join(
            "1" if name == config.log.label.column else str(one or "") * (name == "I1") for name in names
        )
        for one in numbers
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return require_raw(config, config.log, TEST_DAY)


def test_chains_without_extensions_are_pickled_as_before(shop: Path) -> None:
    """Only chains with an operator of a package are read by name in the other process."""
    for groups, by_name in ((PLAIN, False), (GROUPS, True)):
        workflow = nightrank.Workflow(groups).fit(FRAME)
        assert workflow._fitted is not None
        for chain in workflow._fitted.chains:
            made_by = chain.__reduce_ex__(4)[0]
            assert (made_by == FittedChain.from_json) == by_name
            assert pickle.loads(pickle.dumps(chain)) == chain


def test_one_file_adds_an_operator_to_the_checkout(add_to_checkout: AddToCheckout) -> None:
    before = jsonschema.Draft7Validator(config_schema())
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8").partition("\n## An operator\n")[2]
    (text,) = re.findall(r"^```python\n(.*?)^```$", page.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    add_to_checkout(OPERATORS, "reciprocal", text)
    workflow = nightrank.Workflow([{"columns": ["I1"], "kind": "dense", "ops": ["reciprocal"]}]).fit(FRAME)
    encoded: Any = workflow.encode(FRAME)
    assert encoded["I1"].tolist() == [1.0, 0.125, 0.25]
    after = jsonschema.Draft7Validator(config_schema())
    values = {**SMALL, "features": [{"columns": ["I1"], "kind": "dense", "ops": ["reciprocal"]}]}
    assert (before.is_valid(values), after.is_valid(values)) == (False, True)
    assert "Computes 1 / x. Zero becomes null." in pages()["numbers.md"]
    with pytest.raises(ConfigError, match="prepare contains an unknown operator 'reciprocal'"):
        frame_operator_from_config("reciprocal")


def test_a_file_has_the_name_of_its_operator(add_to_checkout: AddToCheckout) -> None:
    text = Path(import_module("etl.operators.log1p").__file__ or "").read_text(encoding="utf-8")
    add_to_checkout(OPERATORS, "logarithm", text)
    with pytest.raises(ConfigError, match=r"etl\.operators\.logarithm defines the operator 'log1p'"):
        operator_from_config("logarithm")
