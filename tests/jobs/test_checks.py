"""Configurations that are refused before any job works.

Every job checks models, features and candidates. A whole run also checks tables, secrets and lists.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.types import Candidates, Config, ModelConfig
from jobs import nightly
from jobs.build_features import run as build_features
from jobs.checks import check_config, check_lists, check_sinks, check_tables, check_training
from jobs.plan_night import run as plan_night
from storage.run_context import RunContext
from tests.cli.test_bad_input import run_here
from training.settings import Features, check_model, known_architectures

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
RUN_DATE = "2026-01-08"
LOCAL = "conf/spark/local.conf"


def write(folder: Path, **sections: Any) -> Path:
    """The generated log with other sections."""
    path = folder / "changed.yaml"
    base = {"extends": str(ROOT / "conf/datasets/generated.yaml"), "lake": str(folder / "lake")}
    path.write_text(yaml.safe_dump({**base, **sections}), encoding="utf-8")
    return path


def table(path: str, names: str, **more: Any) -> dict[str, Any]:
    columns = [{"name": name, "type": "string"} for name in names.split()]
    return {"path": path, "format": "csv", "separator": ",", "columns": columns, **more}


def towers(**settings: Any) -> dict[str, Any]:
    return {"sources": [{"source": "retrieval", "model": {"architecture": "two_tower", **settings}}]}


DLRM = {"architecture": "dlrm", "bottom_mlp": [32, 16]}
WRONG_FOR_EVERY_JOB: list[tuple[dict[str, Any], str]] = [
    ({"model": {**DLRM, "top_mpl": [8]}}, r"architecture dlrm: unknown key model\.top_mpl=\[8\]"),
    ({"model": {**DLRM, "top_mlp": ["wide"]}}, r"model\.top_mlp\.0='wide'"),
    ({"model": {**DLRM, "top_mlp": [10**30]}}, r"model\.top_mlp\.0=10{30}"),
    (
        {"model": {"architecture": "dlmr"}},
        r"model\.architecture='dlmr' does not exist; known: \['bert4rec', 'dcn_v2'",
    ),
    ({"model": {"architecture": "__init__"}}, r"model\.architecture='__init__' does not exist"),
    ({"model": {"architecture": "../dlrm"}}, r"model\.architecture='\.\./dlrm' does not exist"),
    ({"train": {"baselines": ["logistic"]}}, r"train\.baselines names 'logistic': .*does not exist"),
    (
        {"candidates": towers(outptu_dim=3)},
        r"candidates\.sources, retrieval: .*unknown key model\.outptu_dim=3",
    ),
    ({"candidates": towers(output_dim=0)}, r"model\.output_dim=0"),
    (
        {"model": DLRM, "candidates": {"sources": [{"source": "retrieval"}]}},
        r"candidates\.sources, retrieval: model\.architecture='dlrm' has no vectors",
    ),
    (
        {"candidates": {"sources": [{"source": "popular", "segment": "land"}]}},
        r"segment='land' is neither a feature of scope user nor a column of candidates\.user_attributes",
    ),
    ({"scopes": {"user": ["I99"]}}, r"the section `scopes` lists \['I99'\], which are not features"),
    ({"prepare": ["sqrt"]}, r"prepare contains an unknown operator 'sqrt'"),
    ({"prepare": [{"filter": {"keep": "I99 > 0"}}]}, r"I99"),
    (
        {"prepare": [{"groupby": {"by": ["C3"], "aggregates": {"I1": ["sum"]}}}]},
        r"`prepare` drops the key columns",
    ),
    (
        {"features": [{"columns": ["I1"], "kind": "dense", "ops": [{"clip": {"mim": 0}}]}]},
        r"clip does not take mim=0",
    ),
    (
        {"features": [{"columns": ["C1"], "kind": "dense", "ops": ["log1p"]}]},
        r"log1p takes .*, but C1 is string",
    ),
    (
        {
            "features": [
                {
                    "columns": ["C1"],
                    "kind": "categorical",
                    "ops": [{"rename": {"names": {"C1": "../x"}}}, "categorify"],
                }
            ]
        },
        r"an operator would add a column '\.\./x': a column name must have",
    ),
    (
        {
            "features": [
                {
                    "columns": ["C2"],
                    "kind": "dense",
                    "ops": [{"join_external": {"path": "http://a/b", "columns": {"price": "float"}}}],
                }
            ]
        },
        r"join_external path='http://a/b': http:// is not supported",
    ),
    *(
        (
            {"score": {"context": {"C21": value}}},
            rf"score\.context: C21={shown} is a number, but the column has the type string",
        )
        for value, shown in ((False, "0"), (8, "8"), (750, "750"), (2.5, r"2\.5"))  # NO, 010, 12:30, 2.5
    ),
]


@pytest.mark.parametrize("sections, problem", WRONG_FOR_EVERY_JOB)
def test_every_job_refuses(tmp_path: Path, sections: dict[str, Any], problem: str) -> None:
    config = load_config(str(write(tmp_path, **sections)))
    with pytest.raises(ConfigError, match=problem):
        check_config(config)


FEATURES_OF_A_HISTORY = [
    {"columns": ["C1"], "kind": "categorical", "ops": ["categorify"]},
    {"columns": ["C2"], "kind": "multi_hot", "ops": [{"split_list": {"separator": " "}}, "categorify"]},
]
TEST_SPLIT = {"against": "test_split"}
WITHOUT_TEST = {"exclude_clicked": ["train", "validation"]}


@pytest.mark.parametrize("repeats", ["auto", "none", "unclicked"])
@pytest.mark.parametrize("excluded", [["train", "validation", "test"], ["test"], None])
def test_lists_that_leave_out_what_they_are_measured_by_are_refused(
    tmp_path: Path, repeats: str, excluded: list[str] | None
) -> None:
    chosen = {} if excluded is None else {"exclude_clicked": excluded}
    candidates = Candidates.model_validate({"repeats": repeats, **chosen})
    config = load_config(str(write(tmp_path, train={"refit": False}, measure=TEST_SPLIT)))
    with pytest.raises(ConfigError, match=r"no list can have a hit\n.*set candidates\.exclude_clicked=\["):
        check_config(config.model_copy(update={"candidates": candidates}))


def test_bought_items_that_lists_are_measured_by_are_refused() -> None:
    sections = ["measure.against=test_split", "train.refit=false", 'candidates.exclude_events=["purchase"]']
    config = load_config("conf/datasets/shop.yaml", sections)
    with pytest.raises(ConfigError, match=r"leaves the items of clicks with the events \['purchase'\] out"):
        check_config(config)
    check_config(load_config("conf/datasets/shop.yaml", [*sections, 'candidates.exclude_clicked=["train"]']))


@pytest.mark.parametrize("candidates", [WITHOUT_TEST, {"exclude_clicked": ["test"], "repeats": "all"}])
def test_lists_may_be_measured_by_items_that_they_can_contain(
    tmp_path: Path, candidates: dict[str, Any]
) -> None:
    check_config(
        load_config(str(write(tmp_path, train={"refit": False}, measure=TEST_SPLIT, candidates=candidates)))
    )


def test_a_log_without_lists_may_leave_out_the_items_of_the_test_split(tmp_path: Path) -> None:
    config = load_config("conf/datasets/outbrain.yaml")  # its features of scope `pair` allow no lists
    assert config.measure.against == "test_split"
    assert "test" in config.candidates.exclude_clicked
    check_config(config)
    check_config(
        load_config(
            str(write(tmp_path, train={"refit": False}, measure=TEST_SPLIT, keys=None, candidates={}))
        )
    )


def test_the_two_lines_for_serving_movielens_make_a_configuration(tmp_path: Path) -> None:
    path = ROOT / "conf/datasets/movielens.yaml"
    lines = [line.removeprefix("#   ") for line in path.read_text().splitlines() if line.startswith("#   ")]
    served = yaml.safe_load("\n".join(line for line in lines if line.startswith(("candidates:", "measure:"))))
    assert all(f"    {line}\n" in (ROOT / "README.md").read_text() for line in lines[-2:])
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"extends": str(path), **served}))
    config = load_config(str(mine))
    check_config(config)
    assert config.measure.against == "next_day"
    assert "test" in config.candidates.exclude_clicked


WRONG_FOR_A_TRAINING: list[tuple[dict[str, Any], str]] = [
    ({"model": {**DLRM, "bottom_mlp": [8]}}, r"^model\.bottom_mlp=\[8\] must end in embedding_dim=16"),
    ({"model": {**DLRM, "multi_hot": {"lengths": {"C1": 3}}}}, r"^model\.multi_hot\.lengths names \['C1'\]"),
    (
        {"train": {"baselines": ["dlrm"]}},
        r"^train\.baselines names 'dlrm': model\.bottom_mlp=\[\] must end in",
    ),
    (
        {"model": DLRM, "train": {"loss": "full_softmax", "baselines": []}},
        r"^train\.loss=full_softmax compares .* but architecture dlrm does not have such vectors",
    ),
    (
        {"model": {"architecture": "two_tower"}, "train": {"loss": "in_batch_softmax"}},
        r"^train\.baselines names 'logistic_regression': train\.loss=in_batch_softmax compares",
    ),
    (
        {
            "features": FEATURES_OF_A_HISTORY,
            "scopes": {"user": ["C2"], "item": ["C1"], "context": []},
            "model": {"architecture": "mult_vae", "item": "C1", "history": "C2"},
        },
        r"^model\.history_weight=1 lets a row .* but train\.loss=bce compares only the item of the row",
    ),
    (
        {
            "keys": {"user": "C1", "item": "I1"},
            "features": FEATURES_OF_A_HISTORY,
            "scopes": {"user": ["C2"], "item": ["C1"], "context": []},
            "model": {"architecture": "din", "history": "C2"},
        },
        r"^model\.item is null, but no feature of kind categorical has the ids of the items",
    ),
    ({"candidates": towers(), "scopes": {"user": []}}, r"two_tower cannot use features that may differ"),
    (
        {"model": {"architecture": "wide_and_deep", "crosses": [{"left": ["C1"], "right": ["I1"]}]}},
        r"^model\.crosses names \['I1'\]",
    ),
]


@pytest.mark.parametrize("sections, problem", WRONG_FOR_A_TRAINING)
def test_a_model_that_does_not_fit_the_features_is_refused_before_features_are_made_for_it(
    tmp_path: Path, sections: dict[str, Any], problem: str
) -> None:
    config = load_config(str(write(tmp_path, **sections)), ["workflow.mode=retrain"])
    check_config(config)
    with pytest.raises(ConfigError, match=problem):
        check_training(config)
    with pytest.raises(ConfigError, match=problem):
        build_features(RunContext("build_features", config, RUN_DATE))


CLICKS = {"path": "{lake}/log.tsv", "columns": [{"name": "C{1..26}", "type": "string"}], "format": "tsv"}
OF_CLICKS = {
    "name": "clicks",
    "log": CLICKS,
    "keys": {"user": "C1", "item": "C2"},
    "features": [{"columns": ["C1", "C2"], "kind": "categorical", "ops": ["categorify"]}],
    "scopes": {"user": ["C1"], "item": ["C2"]},
    "split": {"by": "leave_last_out"},
}
TOWERS = {"architecture": "two_tower", "output_dim": 4}


@pytest.mark.parametrize(
    "sections, problem",
    [
        ({}, "no section `negatives` adds rows with label 0"),
        (
            {"negatives": {"per_positive": 2, "train": False}},
            "negatives.train=false adds no rows with label 0",
        ),
        ({"negatives": {"per_positive": 2}}, None),
        (
            {
                "negatives": {"per_positive": 2, "train": False},
                "train": {"negatives": {"per_positive": 3}, "loss": "softmax"},
            },
            None,
        ),
        ({"model": TOWERS, "train": {"loss": "in_batch_softmax"}}, None),
        ({"log": {**CLICKS, "label": {"column": "C3", "positive": ["buy"]}}}, None),
    ],
)
def test_a_log_of_clicks_needs_other_rows_unless_the_loss_does_not_use_them(
    tmp_path: Path, sections: dict[str, Any], problem: str | None
) -> None:
    values = {**OF_CLICKS, "model": {"architecture": "logistic_regression"}, **sections}
    path = tmp_path / "clicks.yaml"
    path.write_text(yaml.safe_dump(values))
    config = load_config(str(path))
    check_config(config)
    if problem is None:
        check_training(config)
        return
    with pytest.raises(ConfigError, match=problem) as caught:
        check_training(config)
    assert "negatives" in caught.value.remedy


@pytest.mark.parametrize("job", ["build_features", "generate_clicks", "plan_night", "nightly"])
def test_a_misspelt_key_of_the_model_ends_a_job_before_it_works(tmp_path: Path, job: str) -> None:
    path = write(tmp_path, model={**DLRM, "top_mpl": [8]})
    ended = run_here(job, "--config", path, "--run-date", RUN_DATE)
    assert ended.returncode == 2, ended.stderr
    assert "unknown key model.top_mpl=[8]" in ended.stderr
    assert "its settings are ['bottom_mlp', 'embedding_dim', 'top_mlp']" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "session" not in ended.stderr
    assert ended.stdout == ""
    written = {path.name for path in (tmp_path / "lake").iterdir()} if (tmp_path / "lake").exists() else set()
    assert written <= {"runs"}


def test_the_settings_are_checked_without_torch() -> None:
    """Each job checks them; importing torch costs a second and 200 MB that most jobs need not spend."""
    program = (
        "import sys; from conf.load import load_config; from jobs.checks import check_config\n"
        "import jobs.build_features, jobs.features_of_run\n"
        "for name in ('criteo', 'generated', 'outbrain'):\n"
        "    check_config(load_config(f'conf/datasets/{name}.yaml'))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=120)


def test_every_architecture_of_ours_has_settings_apart_from_its_module() -> None:
    apart = {path.stem for path in (ROOT / "training/architecture_settings").glob("*.py")}
    assert set(known_architectures()) <= apart


def test_the_item_of_a_model_is_the_feature_of_the_items_key(tmp_path: Path) -> None:
    sections = {
        "keys": {"user": "C3", "item": "C1"},
        "features": FEATURES_OF_A_HISTORY,
        "scopes": {"user": ["C2"], "item": ["C1"], "context": []},
        "model": {"architecture": "din", "history": "C2"},
    }
    check_training(load_config(str(write(tmp_path, **sections))))


def test_products_name_features_of_one_id() -> None:
    config = ModelConfig.model_validate(
        {"architecture": "wide_and_deep", "crosses": [{"left": ["C1"], "right": ["C9"]}]}
    )
    check_model(config, Features(ids=["C1", "C9"]))
    with pytest.raises(ConfigError, match=r"model\.crosses names \['C9'\]"):
        check_model(config, Features(ids=["C1"], lists=["C9"]))


@pytest.mark.parametrize("path", sorted((ROOT / "conf/datasets").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_configurations_pass(path: Path) -> None:
    config = load_config(str(path))
    check_config(config)
    check_training(config)
    if path.stem != "outbrain":  # whose features of pairs make no lists, as its first lines say
        check_lists(config)


@pytest.mark.parametrize(
    "sections, problem",
    [
        ({"scopes": {"item": []}}, r"top-k lists cannot be made, .* \(user, item\) pair: \['I6'"),
        (
            {"score": {"context": {"I1": 3}}},
            r"score\.context must have a value .* other names: \['I1'\]",
        ),
        (
            {"scopes": {"context": [], "item": ["I{6..13}", "C2", "C{12..26}"]}},
            r"other names: \['C21', 'C22'",
        ),
    ],
)
def test_lists_that_could_not_be_made_are_refused(
    tmp_path: Path, sections: dict[str, Any], problem: str
) -> None:
    config = load_config(str(write(tmp_path, **sections)))
    with pytest.raises(ConfigError, match=problem):
        check_lists(config)


def test_columns_of_the_context_need_no_value_and_others_are_refused(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "features": [
            {"columns": ["I1", "I11"], "kind": "dense", "ops": ["log1p"]},
            {"columns": ["C1", "C2"], "kind": "categorical", "ops": ["categorify"]},
            {"columns": ["C21"], "kind": "categorical", "ops": ["categorify", "drop_low_cardinality"]},
        ],
        "scopes": {"user": ["I1", "C1"], "item": ["C2"], "context": ["I11", "C21"]},
    }
    base = yaml.safe_load((ROOT / "conf/datasets/generated.yaml").read_text())
    path = tmp_path / "whole.yaml"
    for context, accepted in (({"I11": 1, "C21": "x"}, True), ({}, True), ({"C21": "x", "C2": "y"}, False)):
        model = {"architecture": "logistic_regression"}
        path.write_text(yaml.safe_dump({**base, **sections, "model": model, "score": {"context": context}}))
        config = load_config(str(path))
        if accepted:
            check_lists(config)
        else:
            with pytest.raises(ConfigError, match=r"other names: \['C2'\]"):
                check_lists(config)


def test_values_of_the_context_are_read_as_when_lists_are_scored(tmp_path: Path) -> None:
    columns = {"b": "bool", "d": "date", "x": "float", "t": "string", "l": "list<string>"}
    names = [{"name": name, "type": kind} for name, kind in columns.items()]
    keys = [{"name": name, "type": "string"} for name in ("user", "item")]
    config = {
        "name": "shop",
        "lake": str(tmp_path / "lake"),
        "log": {
            "path": "{date}.csv",
            "format": "csv",
            "columns": [*keys, {"name": "y", "type": "int"}, *names],
        },
        "keys": {"user": "user", "item": "item"},
        "features": [
            {"columns": ["user", "item", "b", "t"], "kind": "categorical", "ops": ["categorify"]},
            {"columns": ["d", "x"], "kind": "dense", "ops": ["fill_median"]},
            {"columns": ["l"], "kind": "multi_hot", "ops": ["categorify"]},
        ],
        "scopes": {"user": ["user"], "item": ["item"], "context": [*columns]},
        "split": {"by": "day", "train_days": 3, "validation_days": 1, "test_days": 1},
        "model": {"architecture": "logistic_regression"},
    }
    config["log"]["label"] = {"column": "y"}  # type: ignore[index]
    path = tmp_path / "shop.yaml"

    def check(**context: Any) -> None:
        path.write_text(yaml.safe_dump({**config, "score": {"context": context}}))
        check_lists(load_config(str(path)))

    check(l=["a"])
    check(b=True, d=16_500, x=1, t="a", l=["a", "b"])
    for context, problem in [
        ({"b": "true"}, r"score\.context: b='true' is not of type int"),
        ({"d": "2026-01-31"}, "score.context: d='2026-01-31' is not of type int"),
        ({"x": "much"}, "score.context: x='much' is not of type float"),
        ({"t": ["a"]}, r"score.context: t=\['a'\] is not of type string"),
        ({"l": "a"}, "score.context: l='a' is not of type strings"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            check(**{"l": ["a"], **context})
    with pytest.raises(ConfigError, match=r"columns without a value: \['l'\]") as caught:
        check()
    assert "no default if it has lists" in caught.value.remedy


def test_a_column_of_another_type_is_delivered_by_a_second_column() -> None:
    def check(column: str, columns: list[Any]) -> None:
        sink = {"kind": "csv", "name": "mail", "path": "{lake}/mail.csv", "user_columns": [column]}
        sections = {"deliver.sinks": [sink], "users.columns": columns}
        overrides = [f"{key}={json.dumps(value)}" for key, value in sections.items()]
        check_sinks(load_config("conf/datasets/shop.yaml", overrides), "conf/spark/local.conf")

    shop = yaml.safe_load((ROOT / "conf/datasets/shop.yaml").read_text())
    columns = shop["users"]["columns"]
    with pytest.raises(ConfigError, match=r"does not declare with the type string") as caught:
        check("newsletter", columns)
    second = "{name: newsletter_text, source: newsletter, type: string}"
    assert second in caught.value.remedy
    check("newsletter_text", [*columns, yaml.safe_load(second)])
    with pytest.raises(ConfigError) as caught:
        check("email", columns)
    assert "such as {name: email, type: string}" in caught.value.remedy


FILTER = {"filter": "out_of_stock", "item": "item"}
ATTRIBUTE = {"format": "csv", "key": "item", "column": "brand"}
SINK = {"kind": "jdbc", "name": "shop", "url": "jdbc:postgresql://h/db", "table": "lists"}
SECRET = {"env": "NIGHTRANK_TEST_NOT_SET"}
SOURCES = {"sources": [{"source": "popular"}]}


def check_before_a_run(config: Config) -> None:
    check_tables(config, RUN_DATE)
    check_sinks(config, LOCAL)


def ruled(path: str) -> dict[str, Any]:
    rules = {
        "attributes": {"brand": {"path": path, **ATTRIBUTE}},
        "max_per_category": {"attribute": "brand", "max": 2},
    }
    return {"score": {"rules": rules}}


@pytest.mark.parametrize(
    "sections, kind, problem",
    [
        (
            {"candidates": {**SOURCES, "filters": [table("{data}/stock.csv", "item", **FILTER)]}},
            DataError,
            r"no raw file at .*stock\.csv \(from candidates\.filters\.0\.path\)",
        ),
        (
            {"candidates": {**SOURCES, "user_attributes": table("{data}/who.csv", "user land", key="user")}},
            DataError,
            r"no raw file at .*who\.csv \(from candidates\.user_attributes\.path\)",
        ),
        (
            ruled("{data}/brands.csv"),
            ConfigError,
            r"score\.rules\.attributes: there is no file at .*brands\.csv",
        ),
        (
            {"deliver": {"sinks": [{**SINK, "user": SECRET, "password": SECRET}]}},
            ConfigError,
            r"user of shop must be in the environment variable NIGHTRANK_TEST_NOT_SET, which is not set",
        ),
        (
            {"deliver": {"sinks": [{**SINK, "user": {"file": "no/such"}, "password": SECRET}]}},
            ConfigError,
            r"user of shop cannot be read from no/such",
        ),
        (
            {
                "deliver": {
                    "sinks": [
                        {**SINK, "user": {"env": "PATH"}, "password": {"env": "PATH"}, "driver_jar": "no.jar"}
                    ]
                }
            },
            ConfigError,
            r"driver_jar=no\.jar of shop does not exist",
        ),
    ],
)
def test_a_run_is_refused_for_what_its_last_stages_would_miss(
    tmp_path: Path,
    sections: dict[str, Any],
    kind: type[Exception],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With --isolate, nightly starts no process before its checks."""
    path = write(tmp_path, data=str(tmp_path / "data"), **sections)
    config = load_config(str(path))
    check_config(config)
    with pytest.raises(kind, match=problem):
        check_before_a_run(config)
    code = nightly.main(["--config", str(path), "--run-date", RUN_DATE, "--isolate"])
    errors = capsys.readouterr().err
    assert code == (2 if kind is ConfigError else 3), errors
    assert "what to do: " in errors
    assert not (tmp_path / "lake").exists()


AGED = [{"name": "user", "type": "string"}, {"name": "age", "type": "int"}]


@pytest.mark.parametrize(
    "name, sections",
    [
        (
            "who",
            {
                "candidates": {
                    **SOURCES,
                    "user_attributes": {**table("{data}/who.csv", "", key="user"), "columns": AGED},
                }
            },
        ),
        (
            "stock",
            {
                "candidates": {
                    **SOURCES,
                    "filters": [{**table("{data}/stock.csv", "", **FILTER), "item": "user", "columns": AGED}],
                }
            },
        ),
        (
            "join",
            {
                "features": [
                    {
                        "columns": ["C1"],
                        "kind": "dense",
                        "ops": [
                            {
                                "join_external": {
                                    "path": "{data}/join.csv",
                                    "format": "csv",
                                    "key": "user",
                                    "columns": {"age": "int"},
                                }
                            }
                        ],
                    }
                ],
                "scopes": {"user": ["age"], "item": [], "context": []},
            },
        ),
        (
            "ages",
            {
                "score": {
                    "rules": {
                        "attributes": {
                            "age": {
                                "path": "{data}/ages.csv",
                                "format": "csv",
                                "key": "user",
                                "column": "age",
                                "columns": AGED,
                            }
                        },
                        "max_per_category": {"attribute": "age", "max": 2},
                    }
                }
            },
        ),
    ],
)
def test_a_bad_value_of_a_table_is_found_before_the_first_stage(
    tmp_path: Path, name: str, sections: dict[str, Any]
) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / f"data/{name}.csv"
    config = load_config(str(write(tmp_path, data=str(tmp_path / "data"), **sections)))
    file.write_text("user,age\nu1,17.0\n")
    check_tables(config, RUN_DATE)
    for text, problem in (
        ("user,age\nu1,17.0\nu2,old\n", "line 3: age has the value 'old', which is not an integer"),
        ("user;age\nu1;17\n", r"has no columns \['user', 'age'\]"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=rf"{name}\.csv:? {problem}"):
            check_tables(config, RUN_DATE)


def test_a_table_that_comes_by_day_may_arrive_later_and_one_that_is_there_passes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/stock.csv").write_text("item\ni1\n")
    (tmp_path / "data/brands.csv").write_text("item,brand\ni1,b\n")
    filters = [table("{data}/stock.csv", "item", **FILTER)]
    for sections in (
        {"candidates": {**SOURCES, "filters": filters}},
        {"candidates": {**SOURCES, "user_attributes": table("{data}/{date}.csv", "user", key="user")}},
        ruled("{data}/{date}/brands.csv"),
        ruled("{data}/brands.csv"),
    ):
        check_tables(load_config(str(write(tmp_path, data=str(tmp_path / "data"), **sections))), RUN_DATE)


def test_secrets_of_a_driver_in_the_cluster_are_not_looked_for_here(tmp_path: Path) -> None:
    config = load_config(
        str(write(tmp_path, deliver={"sinks": [{**SINK, "user": SECRET, "password": SECRET}]}))
    )
    profile = tmp_path / "cluster.conf"
    profile.write_text("spark.submit.deployMode cluster\n")
    check_sinks(config, str(profile))
    with pytest.raises(ConfigError, match="NIGHTRANK_TEST_NOT_SET"):
        check_sinks(config, LOCAL)


def test_a_plan_waits_for_the_log_before_it_looks_for_tables(tmp_path: Path) -> None:
    filters = [table("{data}/stock.csv", "item", **FILTER)]
    path = write(tmp_path, candidates={**SOURCES, "filters": filters}, data=str(tmp_path / "data"))
    job = RunContext("plan_night", load_config(str(path)), RUN_DATE)
    assert plan_night(job).facts["raw_log"]["files"] == 0
    log = tmp_path / f"lake/raw/dt={RUN_DATE}/a.tsv"
    log.parent.mkdir(parents=True)
    log.write_text("1\n")
    with pytest.raises(DataError, match=r"no raw file at .*stock\.csv \(from candidates\.filters\.0\.path\)"):
        plan_night(job)
