"""Configuration: what loads, what is refused, and that a refusal names file, key and value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.errors import ConfigError
from conf.load import config_digest, load_config
from conf.types import expand_range
from etl.raw.layout_digest import layout_digest
from etl.workflow.feature_plan import plan_of

ROOT = Path(__file__).parents[2]

SMALL: dict[str, Any] = {
    "name": "small",
    "log": {
        "path": "{data}/log.tsv",
        "format": "tsv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "I{1..3}", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
        ],
        "label": {"column": "label"},
    },
    "keys": {"user": "user", "item": "item"},
    "features": [{"columns": ["I{1..3}"], "kind": "dense", "ops": ["normalize"]}],
    "split": {"by": "fraction"},
    "model": {"architecture": "dlrm"},
}


def _write(folder: Path, values: Any, name: str = "small.yaml") -> str:
    path = folder / name
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("path", sorted((ROOT / "conf/datasets").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_dataset_of_ours_loads(path: Path) -> None:
    config = load_config(str(path))
    assert config.name == path.stem
    assert plan_of(config).features


def test_ranges_are_expanded_in_order(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, SMALL))
    assert config.log.names == ["label", "I1", "I2", "I3", "user", "item"]
    assert plan_of(config).features == ("I1", "I2", "I3")
    assert expand_range("a{9..11}b") == ["a9b", "a10b", "a11b"]
    assert expand_range("plain") == ["plain"]


def test_extends_merges_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    _write(tmp_path / "models", {"architecture": "dlrm", "embedding_dim": 4}, "tiny.yaml")
    _write(tmp_path, {**SMALL, "model": "models/tiny.yaml", "train": {"epochs": 3, "seed": 9}}, "base.yaml")
    (tmp_path / "deeper").mkdir()
    path = _write(tmp_path / "deeper", {"extends": "../base.yaml", "name": "child", "train": {"epochs": 5}})
    config = load_config(path)
    assert (config.name, config.train.epochs, config.train.seed, config.model.embedding_dim) == (
        "child",
        5,
        9,
        4,
    )


def test_set_overrides_parse_yaml_and_make_sections(tmp_path: Path) -> None:
    overrides = [
        "train.epochs=7",
        "candidates.sources=[{source: popular, n: 7}]",
        "scopes.user=[user]",
        "output.grace_hours=0.5",
    ]
    features = "features=[{columns: [user], kind: categorical, ops: [categorify]}]"
    config = load_config(_write(tmp_path, SMALL), [*overrides, features])
    assert (config.train.epochs, config.output.grace_hours) == (7, 0.5)
    assert [source.model_dump() for source in config.candidates.sources] == [
        {"source": "popular", "n": 7, "segment": None, "window_days": None}
    ]
    assert config.scopes.user == ["user"]


def test_digests_follow_values_and_not_their_origin(tmp_path: Path) -> None:
    plain = load_config(_write(tmp_path, {**SMALL, "train": {"epochs": 2}}))
    overridden = load_config(_write(tmp_path, SMALL), ["train.epochs=2"])
    assert config_digest(plain) == config_digest(overridden)
    assert config_digest(plain, "train") != config_digest(load_config(_write(tmp_path, SMALL)), "train")
    assert config_digest(plain, "split") == config_digest(load_config(_write(tmp_path, SMALL)), "split")


def _changed(*path: str | int, to: Any) -> dict[str, Any]:
    values: Any = yaml.safe_load(yaml.safe_dump(SMALL))
    inner = values
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = to
    return values


@pytest.mark.parametrize(
    "values, problem",
    [
        (_changed("trian", to={}), r"unknown key trian"),
        (_changed("split", "ratio", to=0.5), r"unknown key split\.ratio=0\.5"),
        (_changed("split", "by", to="week"), r"split\.by='week'"),
        (_changed("split", "train", to=1.5), r"split\.train=1\.5"),
        (
            _changed("log", "path", to="{datas}/{lake}/{date:%Y%m%d}.tsv"),
            r"contains \{datas\}, but only \{lake\}, \{data\} and \{date\} are replaced",
        ),
        (
            _changed("split", to={"by": "fraction", "train": 0.9, "validation": 0.1}),
            r"leaves no rows for test",
        ),
        (_changed("split", to={"by": "fraction", "train": 0}), r"split\.train=0: .*greater than 0"),
        (_changed("split", "by", to="day"), r"split\.by=day needs \{date\} in log\.path"),
        (_changed("split", to={"by": "fraction", "train_days": 2, "min_train_days": 3}), r"min_train_days=3"),
        (_changed("log", "separator", to="||"), r"log\.separator='\|\|'"),
        (
            _changed("log", "separator", to="\n"),
            r"log\.separator=.*: a separator must be one of",
        ),
        (
            _changed("log", "separator", to="§"),
            r"log\.separator=.*: a separator must be one of",
        ),
        *(
            (_changed("log", "separator", to=separator), r"log\.separator=.*: a separator must be one of")
            for separator in (
                "x",
                "7",
                "-",
                "+",
                ".",
                "e",
                "_",
                '"',
                "'",
                "\\",
                "/",
                "\r",
                "\0",
                "",
                "\x7f",
            )
        ),
        *(
            (
                _changed("name", to=name),
                r"name=.*: it is the name of a folder in the lake: write 1 to 100 letters",
            )
            for name in ("../../x", "..", ".x", "a/b", "a\\b", "", "a b", "a\x1b[2J", "é", "x" * 101, "a\n")
        ),
        *(
            (
                _changed("log", "columns", 1, "name", to=name),
                r"log\.columns\.1\.name=.*a column name must have 1 to 128",
            )
            for name in ("../x", "a\\b", "", "a\x1bb", "x" * 129, "a\nb", "\u202eb")
        ),
        (_changed("lake", to="http://a/b"), r"lake='http://a/b': http:// is not supported"),
        (_changed("lake", to=""), r"lake='': it must not be empty"),
        (_changed("lake", to="{data}/lake"), r"lake='\{data\}/lake': it must not contain braces"),
        (_changed("lake", to="~/lake"), r"lake='~/lake': ~ and environment variables are not replaced"),
        (_changed("lake", to="$HOME/lake"), r"lake='\$HOME/lake': ~ and environment variables are not"),
        (_changed("data", to="ftp://a/b"), r"data='ftp://a/b': ftp:// is not supported"),
        (_changed("log", "path", to="https://a/b.tsv"), r"log\.path='https://a/b\.tsv': https:// is not"),
        (_changed("keys", "item", to="user"), r"keys: item='user' is also the column of `user`"),
        (_changed("log", "columns", 1, "name", to="I{3..1}"), r"'I\{3\.\.1\}': a range must ascend"),
        (_changed("log", "columns", 1, "name", to="I{1..99999999}"), r"at most 10000 numbers"),
        (_changed("train", to={"learning_rate": float("inf")}), r"train\.learning_rate=inf"),
        (_changed("train", to={"learning_rate": float("nan")}), r"train\.learning_rate=nan"),
        (_changed("train", to={"decay_power": float("inf")}), r"train\.decay_power=inf"),
        (_changed("train", to={"embeddings": {"row_wise_share": float("inf")}}), r"row_wise_share=inf"),
        (_changed("train", to={"stop_at": {"value": float("inf")}}), r"train\.stop_at\.value=inf"),
        (_changed("gate", to={"margin": float("inf")}), r"gate\.margin=inf"),
        (_changed("gate", to={"drift": {"score_psi_hold": float("inf")}}), r"drift\.score_psi_hold=inf"),
        (_changed("output", to={"grace_hours": float("inf")}), r"output\.grace_hours=inf"),
        (_changed("quality", to={"psi_stop": float("inf")}), r"quality\.psi_stop=inf"),
        (_changed("score", to={"context": {"I1": float("inf")}}), r"score\.context\.I1.*=inf"),
        (_changed("score", to={"stop": {"max_score_psi": float("inf")}}), r"stop\.max_score_psi=inf"),
        (_changed("log", "label", "positive_at_least", to=float("inf")), r"positive_at_least=inf"),
        (_changed("train", to={"seed": 10**30}), r"train\.seed=10{30}"),
        (_changed("train", to={"epochs": 10**30}), r"train\.epochs=10{30}"),
        (_changed("split", to={"by": "fraction", "train_days": 10**7}), r"split\.train_days=10000000"),
        (
            _changed("generate", to={"first_date": "2026-02-30"}),
            r"generate\.first_date='2026-02-30': day is out of",
        ),
        (_changed("generate", to={"first_date": "20260203"}), r"generate\.first_date=.*write 2026-02-03"),
        (_changed("generate", to={"first_date": "9999-12-31"}), r"its year must be from 1970 to 2199"),
        (_changed("log", "columns", 1, "name", to="label"), r"columns appear twice: \['label'\]"),
        (_changed("log", "columns", 0, "type", to="integer"), r"log\.columns\.0\.type='integer'"),
        (
            _changed("log", "label", "column", to="click"),
            r"log\.label names columns that do not exist: \['click'\]",
        ),
        (_changed("keys", "user", to="uid"), r"keys names columns that do not exist: \['uid'\]"),
        (
            _changed("features", 0, "columns", to=["I9"]),
            r"features\.columns names columns that do not exist: \['I9'\]",
        ),
        (
            _changed("features", 0, "columns", to=["I1", "I1"]),
            r"features\.columns names the columns \['I1'\] twice",
        ),
        (_changed("train", to={"num_ranks": 3}), r"num_shards=16 must be a multiple of num_ranks=3"),
        (
            _changed("train", to={"num_ranks": 2, "elastic": {"min_ranks": 3}}),
            r"elastic\.min_ranks=3 must not be more than num_ranks=2",
        ),
        (_changed("train", to={"elastic": {"ranks": 3}}), r"unknown key train\.elastic\.ranks=3"),
        (
            _changed("train", to={"global_batch_size": 100}),
            r"global_batch_size=100 must be a multiple of num_shards=16",
        ),
        (_changed("train", to={"epochs": 0}), r"train\.epochs=0"),
        (_changed("negatives", to={"per_positive": 0}), r"negatives\.per_positive=0"),
        (
            {
                **_changed("log", "path", to="{data}/{date}.tsv"),
                "split": {"by": "day"},
                "negatives": {"per_positive": 2, "train": False},
            },
            r"negatives\.train=false needs a split\.by other than day",
        ),
        (_changed("quality", to={"max_bad_share": -0.1}), r"quality\.max_bad_share=-0\.1"),
        (
            _changed("quality", to={"psi_warn": 0.3, "psi_stop": 0.2}),
            r"quality: psi_warn=0\.3 must not be above psi_stop=0\.2",
        ),
        (_changed("quality", to={"new_value_rate_stop": 1.5}), r"quality\.new_value_rate_stop=1\.5"),
        (
            _changed("quality", to={"exempt": ["I9"]}),
            r"quality\.exempt names columns that do not exist: \['I9'\]",
        ),
        (
            {**_changed("quality", to={"exempt": ["I9"]}), "prepare": [{"dropna": {"columns": ["I1"]}}]},
            r"quality\.exempt names columns that do not exist: \['I9'\]",
        ),
        ({key: value for key, value in SMALL.items() if key != "model"}, r"model is missing"),
        ({**SMALL, "keys": None, "split": {"by": "leave_last_out"}}, r"need the section `keys`"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, values: dict[str, Any], problem: str) -> None:
    path = _write(tmp_path, values)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(path)
    assert path in caught.value.problem
    assert "--set" in caught.value.remedy


def _table(names: str, **more: Any) -> dict[str, Any]:
    """A table of string columns."""
    columns = [{"name": name, "type": "string"} for name in names.split()]
    return {"path": "{data}/t.csv", "format": "csv", "columns": columns, **more}


BY_COUNTRY = {
    "filter": "not_allowed",
    "item": "item",
    "value": "land",
    "attribute": "country",
    "rule": "deny",
}


@pytest.mark.parametrize(
    "candidates, problem",
    [
        ({"strategy": "popular"}, r"unknown key candidates\.strategy='popular'"),
        ({"sources": []}, r"candidates\.sources: List should have at least 1 item"),
        ({"sources": [{"source": "random"}]}, r"candidates\.sources\.0: .*'random'.*'popular'"),
        ({"sources": [{"source": "popular", "m": 3}]}, r"unknown key candidates\.sources\.0\.popular\.m=3"),
        ({"sources": [{"source": "all_items"}, {"source": "popular"}]}, r"all_items offers every item"),
        ({"max": 5}, r"all_items offers every item"),
        ({"repeats": "some"}, r"candidates\.repeats='some'"),
        ({"sources": [{"source": "popular"}] * 2}, r"sources contains \['popular'\] twice"),
        (
            {"sources": [{"source": "popular", "window_days": 3}]},
            r"\['sources\.popular\.window_days'\] count only some days, but rows have no date",
        ),
        ({"active_days": 3}, r"\['active_days'\] count only some days, but rows have no date"),
        ({"user_attributes": _table("who", key="user")}, r"user_attributes: columns must contain \['user'\]"),
        (
            {"filters": [_table("thing", filter="out_of_stock", item="item")]},
            r"columns must contain \['item'\]",
        ),
        (
            {"filters": [_table("item n", filter="out_of_stock", item="item", stock="n")]},
            r"list the strings that mean out of stock in `sold_out`",
        ),
        (
            {"filters": [_table("item", filter="out_of_stock", item="item", sold_out=["sold out"])]},
            r"stock=None is not a column of type string: remove sold_out",
        ),
        ({"filters": [_table("item land", **BY_COUNTRY)]}, r"'country' is not a column of user_attributes"),
        (
            {"filters": [_table("item land", **{**BY_COUNTRY, "rule": "at_least"})]},
            r"value='land' is a string column, but rule=at_least compares numbers",
        ),
        (
            {
                "filters": [_table("item land", **BY_COUNTRY)] * 2,
                "user_attributes": _table("user country", key="user"),
            },
            r"filters contains \['not_allowed by country'\] twice",
        ),
    ],
)
def test_candidates_that_do_not_fit_together_are_refused(
    tmp_path: Path, candidates: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(_write(tmp_path, {**SMALL, "candidates": candidates}))


@pytest.mark.parametrize(
    "changes, repeats",
    [
        ({}, "unclicked"),
        ({"log": {**SMALL["log"], "label": {"column": "label", "positive_at_least": 4}}}, "none"),
        ({"negatives": {"per_positive": 2}}, "none"),
        ({"negatives": {"per_positive": 2}, "candidates": {"repeats": "unclicked"}}, "unclicked"),
        ({"candidates": {"repeats": "all"}}, "all"),
        ({"candidates": {"repeats": "none"}}, "none"),
    ],
)
def test_a_log_of_choices_repeats_nothing_unless_it_says_so(
    tmp_path: Path, changes: dict[str, Any], repeats: str
) -> None:
    assert load_config(_write(tmp_path, {**SMALL, **changes})).repeats == repeats


def test_lists_are_not_measured_on_the_clicks_that_made_them(tmp_path: Path) -> None:
    values = {**SMALL, "measure": {"against": "test_split"}, "candidates": {"splits": ["train", "test"]}}
    with pytest.raises(ConfigError, match="computed from the clicks on"):
        load_config(_write(tmp_path, values))


@pytest.mark.parametrize(
    "splits, days, fits",
    [
        (["train"], 2, False),
        (["train"], 3, True),
        (["train", "validation"], 1, False),
        (["validation"], 2, True),
        (["train", "validation", "test"], 1, True),
    ],
)
@pytest.mark.parametrize("key", ["active_days", "sources.popular.window_days"])
def test_a_window_without_a_day_of_the_counted_splits_is_refused(
    tmp_path: Path, splits: list[str], days: int, fits: bool, key: str
) -> None:
    source = {"source": "popular", **({} if key == "active_days" else {"window_days": days})}
    candidates = {"sources": [source], "splits": splits, **({key: days} if key == "active_days" else {})}
    by_day = {"by": "day", "validation_days": 1, "test_days": 1}
    log = {**SMALL["log"], "path": "{data}/{date}.tsv"}
    path = _write(tmp_path, {**SMALL, "log": log, "split": by_day, "candidates": candidates})
    if fits:
        load_config(path)
        return
    with pytest.raises(ConfigError, match=re.escape(f"{key}={days} (in days) contain no rows")):
        load_config(path)


def test_the_model_of_a_source_may_name_a_file_relative_to_the_config_that_says_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    _write(tmp_path / "models", {"architecture": "two_tower", "output_dim": 5}, "towers.yaml")
    sources = [{"source": "popular"}, {"source": "retrieval", "n": 9, "model": "models/towers.yaml"}]
    _write(tmp_path, {**SMALL, "candidates": {"sources": sources}}, "base.yaml")
    (tmp_path / "deeper").mkdir()
    child = _write(tmp_path / "deeper", {"extends": "../base.yaml", "name": "child"})
    for path in (str(tmp_path / "base.yaml"), child):
        retrieval = load_config(path).candidates.retrieval
        assert retrieval is not None
        assert (retrieval.n, retrieval.model.output_dim) == (9, 5)  # type: ignore[attr-defined]


USERS = {"path": "{data}/users.csv", "format": "csv", "columns": [{"name": "user", "type": "string"}]}


@pytest.mark.parametrize(
    "columns, problem",
    [
        ([{"name": "who", "type": "string"}], r"users\.columns must contain the key 'user'"),
        (
            [{"name": "user", "type": "string"}, {"name": "I1", "type": "int"}],
            r"users\.columns and log\.columns both name \['I1'\]",
        ),
    ],
)
def test_attributes_must_fit_the_log(tmp_path: Path, columns: list[dict[str, str]], problem: str) -> None:
    values = {**SMALL, "users": {**USERS, "columns": columns}, "scopes": {"user": ["I2"]}}
    with pytest.raises(ConfigError, match=problem):
        load_config(_write(tmp_path, values))


def test_only_items_without_a_row_may_be_left_out(tmp_path: Path) -> None:
    """The setting does not change how a log is parsed, so stored days of the log remain valid."""
    items = {**USERS, "columns": [{"name": "item", "type": "string"}]}
    served = load_config(_write(tmp_path, {**SMALL, "items": {**items, "missing": "serve"}}))
    default = load_config(_write(tmp_path, {**SMALL, "items": items}))
    assert served.items is not None
    assert default.items is not None
    assert (served.items.missing, default.items.missing) == ("serve", "leave_out")
    assert layout_digest(served) == layout_digest(default)
    for section, problem in (
        ({"items": {**items, "missing": "drop"}}, r"items\.missing"),
        ({"users": {**USERS, "missing": "leave_out"}}, r"users\.missing"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_config(_write(tmp_path, {**SMALL, **section}))


@pytest.mark.parametrize(
    "override, problem",
    [
        ("train.epochs", r"--set 'train\.epochs' is not of the form a\.b=value"),
        ("=3", r"is not of the form"),
        ("train.epoch=3", r"unknown key train\.epoch=3"),
        ("name.first=3", r"name is 'small', not a section"),
        ("train.epochs=[1", r"the value is not YAML"),
        ("train.epochs=many", r"train\.epochs='many'"),
    ],
)
def test_a_bad_override_is_named(tmp_path: Path, override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(_write(tmp_path, SMALL), [override])


@pytest.mark.parametrize(
    "text, problem",
    [("a: [", "is not YAML"), ("- 1\n- 2\n", "contains a list, not a mapping"), ("", "contains a NoneType")],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(path)
    assert path in caught.value.problem


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.yaml: No such file"):
        load_config(str(tmp_path / "absent.yaml"))
    with pytest.raises(ConfigError, match=r"cannot read .*parent\.yaml"):
        load_config(_write(tmp_path, {"extends": "parent.yaml"}))
    with pytest.raises(ConfigError, match=r"cannot read .*model\.yaml"):
        load_config(_write(tmp_path, {**SMALL, "model": "model.yaml"}))


def test_a_loaded_config_is_frozen(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, SMALL))
    with pytest.raises(ValueError, match="frozen"):
        config.train.epochs = 9


def test_a_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, yaml.safe_dump(SMALL) + "name: another\n")
    with pytest.raises(ConfigError, match="'name' occurs twice"):
        load_config(path)


def test_the_precision_of_scores_enters_the_digest_and_must_be_a_known_one(tmp_path: Path) -> None:
    path = _write(tmp_path, SMALL)
    full, half = load_config(path), load_config(path, ["score.precision=bf16"])
    assert (full.score.precision, half.score.precision) == ("fp32", "bf16")
    assert config_digest(full, "score") != config_digest(half, "score")
    with pytest.raises(ConfigError, match=r"score\.precision"):
        load_config(path, ["score.precision=int3"])


@pytest.mark.parametrize("name", ["user_key", "row_id", "item_key", "group_key", "split", "event_time"])
@pytest.mark.parametrize("section", ["log", "users"])
def test_raw_columns_named_like_ours_are_refused(tmp_path: Path, section: str, name: str) -> None:
    column = {"name": name, "type": "string"}
    log = {**SMALL["log"], "columns": [*SMALL["log"]["columns"], *([column] if section == "log" else [])]}
    users = {"path": "u", "format": "csv", "columns": [{"name": "user", "type": "string"}, column]}
    values = {**SMALL, "log": log, **({"users": users} if section == "users" else {})}
    with pytest.raises(ConfigError, match=rf"{section}\.columns names \['{name}'\].*source: {name}"):
        load_config(_write(tmp_path, values))


@pytest.mark.parametrize("name", ["a.b", "a`b", "_a", "*"])
def test_names_that_spark_takes_for_something_else_are_refused(tmp_path: Path, name: str) -> None:
    log = {**SMALL["log"], "columns": [*SMALL["log"]["columns"], {"name": name, "type": "int"}]}
    with pytest.raises(ConfigError, match="must not contain a dot or a"):
        load_config(_write(tmp_path, {**SMALL, "log": log}))


def test_the_event_time_may_be_named_so(tmp_path: Path) -> None:
    column = {"name": "event_time", "type": "int"}
    log = {**SMALL["log"], "columns": [*SMALL["log"]["columns"], column]}
    config = load_config(_write(tmp_path, {**SMALL, "log": {**log, "event_time": {"column": "event_time"}}}))
    assert plan_of(config).features == ("I1", "I2", "I3")


@pytest.mark.parametrize("kind", ["float", "string"])
def test_ids_and_times_have_types_whose_texts_are_unique(tmp_path: Path, kind: str) -> None:
    columns = [{"name": "label", "type": "int"}, *({"name": name, "type": kind} for name in ("I1", "user"))]
    log = {**SMALL["log"], "columns": [*columns, {"name": "item", "type": "string"}]}
    small = {**SMALL, "features": [{"columns": ["item"], "kind": "categorical", "ops": ["categorify"]}]}
    if kind == "float":
        with pytest.raises(ConfigError, match="keys names the column 'user', which has the type float"):
            load_config(_write(tmp_path, {**small, "log": log}))
    timed = {**small, "log": {**log, "event_time": {"column": "I1"}}, "keys": None}
    problem = (
        f"event_time names .* has the type {kind}: give it the type timestamp or date or int in log.columns"
    )
    with pytest.raises(ConfigError, match=f"{problem}: declare the column as a time: `type: timestamp`"):
        load_config(_write(tmp_path, timed))


@pytest.mark.parametrize(
    "form, separator, expected",
    [("csv", None, ","), ("tsv", None, "\t"), ("csv", "\t", "\t"), ("tsv", ",", ",")],
)
def test_the_default_separator_is_that_of_the_format(
    tmp_path: Path, form: str, separator: str | None, expected: str
) -> None:
    log = {**SMALL["log"], "format": form, **({"separator": separator} if separator else {})}
    assert load_config(_write(tmp_path, {**SMALL, "log": log})).log.field_separator == expected


def test_null_values_are_texts_and_include_the_empty_text(tmp_path: Path) -> None:
    log = {**SMALL["log"], "null_values": ["\\N", "NULL", "\\N"]}
    assert load_config(_write(tmp_path, {**SMALL, "log": log})).log.null_values == ["", "\\N", "NULL"]
    for wrong in (None, -1, "a\nb"):
        with pytest.raises(ConfigError, match=r"null_values: .*quote each value"):
            load_config(_write(tmp_path, {**SMALL, "log": {**SMALL["log"], "null_values": ["", wrong]}}))


@pytest.mark.parametrize("name", ["label", "user_key", "row_id", "event_time", "split", "_day", "a.b"])
def test_features_named_like_our_columns_are_refused(tmp_path: Path, name: str) -> None:
    ops = [{"rename": {"names": {"I1": name}}}]
    config = load_config(_write(tmp_path, {**SMALL, "features": [{**SMALL["features"][0], "ops": ops}]}))
    with pytest.raises(ConfigError, match=rf"features would add columns named \['{re.escape(name)}'\]"):
        plan_of(config)


@pytest.mark.parametrize("where, column", [("log.label", "label"), ("keys", "C1"), ("log.event_time", "I1")])
def test_columns_without_which_no_row_is_used_are_not_optional(
    tmp_path: Path, where: str, column: str
) -> None:
    columns = [
        {"name": name, "type": kind, "optional": name == column}
        for name, kind in (("label", "int"), ("I1", "int"), ("C1", "string"), ("C2", "string"))
    ]
    log = {**SMALL["log"], "format": "csv", "columns": columns, "event_time": {"column": "I1"}}
    features = [{"columns": ["C1"], "kind": "categorical", "ops": ["categorify"]}]
    changes = {**SMALL, "log": log, "keys": {"user": "C1", "item": "C2"}, "features": features}
    with pytest.raises(ConfigError, match=f"{where} names the column '{column}', without which no row"):
        load_config(_write(tmp_path, changes))
