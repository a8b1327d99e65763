"""The rule of a package changes lists, together with the rules of the checkout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from conf.errors import ConfigError, DataError
from conf.load import types_of
from conf.plugins import RULE as RULES
from conf.types import Config, ListRules
from jobs.reference import config_schema, configuration_page
from scoring.ranking.recommender import ListRanker
from scoring.rules.attributes import rule_digests
from scoring.rules.request import read_rule_settings, rules_request
from tests.contract.test_config import SMALL
from tests.extensions.conftest import AddToCheckout
from tests.extensions.packages import SHOP, forget_shop, write_package
from tests.scoring.ranking.test_recommender import batch_of
from tests.scoring.reference_scores import ReferenceScores, make_recommender, make_reference

RUN_DATE = "2026-01-05"
K = 6


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ReferenceScores:
    return make_reference(tmp_path_factory.mktemp("reference"))


def recommender_with(reference: ReferenceScores, **rules: Any) -> ListRanker:
    request = rules_request(ListRules.model_validate(rules), K, RUN_DATE, {})
    return make_recommender(replace(reference.request, k=K, rules=request))


def lists_of(recommender: ListRanker, reference: ReferenceScores) -> pd.DataFrame:
    lists = recommender.recommend(batch_of(reference.users))
    return pd.concat([batch.to_pandas() for batch in lists], ignore_index=True)


def expected(reference: ReferenceScores, user: int, up: str, factor: float, ended: str) -> list[str]:
    """The list of a user by plain Python."""
    keys = reference.items.item_key
    scores = reference.probabilities[user].astype(np.float32)
    ranked = [
        (-np.float32(score * (factor if key.startswith(up) else 1)), key)
        for key, score in zip(keys, scores, strict=True)
        if not key.startswith(ended)
    ]
    return [key for _, key in sorted(ranked)][:K]


def test_lists_equal_plain_python(reference: ReferenceScores, shop: Path) -> None:
    season = {"season": "i01", "factor": 3.0, "ended": "i02"}
    lists = lists_of(recommender_with(reference, season=season), reference)
    plain = lists_of(make_recommender(replace(reference.request, k=K)), reference)
    probability = dict(zip(zip(plain.user_id, plain.item_id, strict=True), plain.score, strict=True))
    for number, user in enumerate(reference.users.user_key):
        got = lists[lists.user_id == user]
        assert got.item_id.tolist() == expected(reference, number, "i01", 3.0, "i02")
        assert got.reason.tolist() == [
            "rule:season" if key.startswith("i01") else "ranked" for key in got.item_id
        ]
        for key, score in zip(got.item_id, got.score, strict=True):  # the published scores do not change
            assert score == pytest.approx(probability.get((user, key), score), abs=1e-6)
    assert lists.item_id.tolist() != plain.item_id.tolist()


def test_items_that_are_left_out_do_not_fill_a_category(
    reference: ReferenceScores, shop: Path, tmp_path: Path
) -> None:
    """All items are of one category, of which two may be in a list; and half of the lists is drawn."""
    (tmp_path / "shelf.csv").write_text("sku,shelf\n" + "".join(f"{k},a\n" for k in reference.items.item_key))
    shelf = {"path": str(tmp_path / "shelf.csv"), "format": "csv", "key": "sku", "column": "shelf"}
    rules: dict[str, Any] = {
        "attributes": {"shelf": shelf},
        "max_per_category": {"attribute": "shelf", "max": 2},
        "season": {"season": "x", "ended": "i00"},
    }
    lists = lists_of(recommender_with(reference, **rules), reference)
    for number, user in enumerate(reference.users.user_key):
        got = lists[lists.user_id == user].item_id.tolist()
        assert got == expected(reference, number, "x", 1.0, "i00")[:2]
    drawn = lists_of(recommender_with(reference, **rules, exploration={"share": 0.5}), reference)
    assert not drawn.item_id.str.startswith("i00").any()
    assert drawn.groupby("user_id").size().tolist() == [2] * len(reference.users)


def test_rules_are_applied_in_the_order_of_their_places(shop: Path) -> None:
    """Not in the order of the file: exploration is last, so that no rule changes the drawn items."""
    rules = {"exploration": {"share": 0.5}, "season": {"season": "x"}}
    read = read_rule_settings(ListRules.model_validate(rules))
    assert [plugin.name for plugin, _ in read] == ["season", "exploration"]


def test_settings_are_checked_by_the_package(shop: Path) -> None:
    for settings, message in (
        ({}, r"score\.rules\.season\.season is missing"),
        ({"season": "a", "speed": 3}, r"unknown key score\.rules\.season\.speed=3"),
        ({"season": "a", "factor": 0}, r"score\.rules\.season\.factor=0: Input should be greater than 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_rule_settings(ListRules.model_validate({"season": settings}))
    with pytest.raises(ValueError, match=r"the rules \['season'\] need a section with their settings"):
        ListRules.model_validate({"season": 3})


def test_the_digest_depends_on_code_and_tables(site: Path, shop: Path) -> None:
    assert rule_digests(None, RUN_DATE) == {}
    assert rule_digests(ListRules.model_validate({"exploration": {"share": 0.5}}), RUN_DATE) == {}
    rules = ListRules.model_validate({"season": {"season": "a"}})
    first = rule_digests(rules, RUN_DATE)
    (shop / "__init__.py").write_text("VERSION = 2\n")
    assert [*first] == ["rules.season"]
    assert rule_digests(rules, RUN_DATE) != first
    text = (shop / "season.py").read_text() + "\n\ndef digest(settings, run_date):\n    return run_date\n"
    (shop / "season.py").write_text(text)
    forget_shop()
    of_day, of_next = (rule_digests(rules, day)["rules.season.tables"] for day in (RUN_DATE, "2026-01-06"))
    assert (of_day, of_next) == (RUN_DATE, "2026-01-06")


RULE = """
from nightrank.extending import ItemRule, Strict

class Settings(Strict):
    pass

class Wrong(ItemRule):
    def ranking_scores(self, scores, items):
        return {result}

    def allowed(self, items, valid):
        return {allowed}

    def moved(self):
        return {moved}

def load(settings, inputs):
    return {loaded}
"""


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"allowed": "items"}, r"allowed of the rule wrong returned torch.int64 of the shape .*not bools"),
        (
            {"allowed": "valid[:, :1]"},
            r"allowed of the rule wrong returned torch.bool of the shape .*not bools",
        ),
        ({"moved": "[True]"}, r"moved of the rule wrong returned list, not bools of the shape \(\d+,\)"),
        ({"result": "None"}, "ranking_scores of the rule wrong returned NoneType, not a tensor"),
    ],
)
def test_results_of_other_types_are_named(
    reference: ReferenceScores, site: Path, wrong: dict[str, str], message: str
) -> None:
    text = RULE.format(
        **{"result": "scores", "allowed": "valid", "moved": "None", "loaded": "Wrong()"} | wrong
    )
    write_package(site, "wrong", {"rules": {"wrong": "wrong"}}, {"wrong": text})
    with pytest.raises(ConfigError, match=message):
        lists_of(recommender_with(reference, wrong=None), reference)


@pytest.mark.parametrize(
    "result, loaded, message",
    [
        ("scores * float('nan')", "Wrong()", "the rule wrong returned ranking scores.* of them NaN"),
        ("scores.sum(1)", "Wrong()", r"the rule wrong returned ranking scores of the shape \(\d+,\)"),
        ("scores", "3", "the module wrong of the package wrong 1.0, loaded a int, not an ItemRule"),
    ],
)
def test_a_wrong_rule_is_named(
    reference: ReferenceScores, site: Path, result: str, loaded: str, message: str
) -> None:
    text = RULE.format(result=result, loaded=loaded, allowed="valid", moved="None")
    write_package(site, "wrong", {"rules": {"wrong": "wrong"}}, {"wrong": text})
    with pytest.raises((ConfigError, DataError), match=message):
        lists_of(recommender_with(reference, wrong=None), reference)


def test_equal_rules_are_equal_requests_for_workers(shop: Path) -> None:
    """Workers keep a recommender by the hash of its request."""
    orders = ({"season": "a", "factor": 2}, {"factor": 2, "season": "a"}, {"season": "a", "factor": 3})
    requests = [rules_request(ListRules.model_validate({"season": one}), K, RUN_DATE, {}) for one in orders]
    assert len({*requests}) == 2


def test_one_file_adds_a_rule_to_the_checkout(
    reference: ReferenceScores, add_to_checkout: AddToCheckout
) -> None:
    before = jsonschema.Draft7Validator(config_schema())
    add_to_checkout(RULES, "season", (SHOP / "season.py").read_text(encoding="utf-8"))
    season = {"season": "i01", "factor": 3.0, "ended": "i02"}
    lists = lists_of(recommender_with(reference, season=season), reference)
    for number, user in enumerate(reference.users.user_key):
        assert lists[lists.user_id == user].item_id.tolist() == expected(reference, number, "i01", 3.0, "i02")
    rules = ListRules.model_validate({"season": season})
    assert (rules.packages, rule_digests(rules, RUN_DATE)) == ([], {})
    assert ListRules.model_validate(rules.model_dump(mode="json")) == rules
    assert types_of(Config, ["score", "rules", "season", "factor"]) == (float,)
    with pytest.raises(ValidationError, match=r"season\.factor\n  Input should be greater than 0"):
        ListRules.model_validate({"season": {**season, "factor": 0}})
    after = jsonschema.Draft7Validator(config_schema())
    values = {**SMALL, "score": {"rules": {"season": season}}}
    assert (before.is_valid(values), after.is_valid(values)) == (False, True)
    assert not after.is_valid({**SMALL, "score": {"rules": {"season": {"speed": 1}}}})
    section = configuration_page().partition("## `score.rules.season`\n")[2].partition("\n## ")[0]
    assert "A rule that moves the items of a season up." in section
    assert "| `factor` | number, above 0 | `2.0` |" in section


def test_a_rule_of_a_package_may_use_an_attribute(
    reference: ReferenceScores, site: Path, tmp_path: Path
) -> None:
    text = """
from nightrank.extending import AttributeRule as Settings, ItemRule
import torch
class Rule(ItemRule):
    def __init__(self, codes): self.codes = torch.from_numpy(codes)
    def allowed(self, items, valid): return self.codes[items] >= 0
def load(settings, inputs): return Rule(inputs.attributes[settings.attribute].codes)
"""
    write_package(site, "mine", {"rules": {"on_a_shelf": "on_a_shelf"}}, {"on_a_shelf": text})
    keys = reference.items.item_key[:4].tolist()
    (tmp_path / "shelf.csv").write_text("sku,shelf\n" + "".join(f"{key},a\n" for key in keys))
    shelf = {"path": str(tmp_path / "shelf.csv"), "format": "csv", "key": "sku", "column": "shelf"}
    rules: dict[str, Any] = {"attributes": {"shelf": shelf}, "on_a_shelf": {"attribute": "shelf"}}
    lists = lists_of(recommender_with(reference, **rules), reference)
    assert set(lists.item_id) == set(keys)
    with pytest.raises(
        ConfigError, match=r"score\.rules\.on_a_shelf uses the attributes \['rack'\], which are"
    ):
        recommender_with(reference, **{**rules, "on_a_shelf": {"attribute": "rack"}})


def test_only_one_rule_may_draw(reference: ReferenceScores, site: Path) -> None:
    text = "from scoring.rules.plugins.exploration import Settings, load\n"
    write_package(site, "mine", {"rules": {"drawn": "drawn"}}, {"drawn": text})
    with pytest.raises(ConfigError, match=r"the rules \['drawn', 'exploration'\] all draw the items"):
        recommender_with(reference, drawn={"share": 0.5}, exploration={"share": 0.5})
