"""The report: complete with every fact, a sentence for each missing fact, escaped, self-contained."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conf.load import load_config
from conf.types import Config, Negatives
from etl.latest.item_titles import ItemTitle
from etl.quality.checks import MissingRows
from jobs import report
from jobs.runner import run_job
from reporting.elements.markup import Html, join, table, tag
from reporting.facts import run_facts
from reporting.facts.run_facts import UserHistory, UserList, read_run_facts
from reporting.html.page import build
from reporting.html.sections import list_sections
from reporting.html.sections.stages import read_stage_times
from storage import file_io
from storage.dataset import Dataset, Member, publish_dataset, read_dataset
from storage.manifest import read_manifest, replace_manifest
from storage.paths import LakePaths
from storage.publish import publish_rows
from storage.read_parquet import read_table
from tests.reporting.report_lake import (
    CHANGES,
    FINDINGS,
    HOSTILE_ITEM,
    MEASURE,
    MODEL,
    RUN_DATE,
    WORKFLOW,
    config_of,
    make_lake,
    publish_facts,
    quality_facts,
)

_VOID = {"meta", "br"}
_SECTIONS = [
    "sample",
    "data",
    "quality",
    "training",
    "gate",
    "calibration",
    "measured",
    "changes",
    "coverage",
    "stages",
]


class Page(HTMLParser):
    """Collects tags and text, and fails on elements that are not closed in order.

    Its text leaves out the list of contents.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects the element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leaves the element."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collects text."""
        if "nav" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The text of the page."""
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(make_lake(tmp_path_factory.mktemp("lake")), RUN_DATE)[1]


def test_full_report_shows_every_section_and_its_figures(full: str) -> None:
    page = Page(full)
    assert [attributes["id"] for name, attributes in page.tags if name == "section"] == _SECTIONS
    assert "has no result" not in page.text
    # (0.7984 - 0.5) / (0.8142 - 0.5) = 0.9497; the lift and the reason come from the facts as they are
    for figure in (
        "0.7984",
        "0.8142",
        "95.0%",
        "0.7103",
        "21.0%",
        "2.10×",
        "there was no champion & <none> to beat",
    ):
        assert figure in page.text
    for figure in (
        "800 rows of 4 days",
        "16 of 816 raw rows (1.96%)",
        "wrong number of fields 16",
        "200 steps by 2 ranks",
        "build_features",
        "54.8 s",
        "Recall @112 All candidates 62.5% covisitation 37.5% popular 25.0%",
    ):
        assert figure in page.text
    # The days are drawn once, in the section about the data.
    assert full.count("<svg") == 10


def test_the_contents_link_to_every_section_in_its_order(full: str) -> None:
    page = Page(full)
    links = [attributes["href"] for name, attributes in page.tags if name == "a"]
    assert links == [f"#{name}" for name in _SECTIONS]
    contents = full[full.index("<nav") : full.index("</nav>")]
    titles = re.findall(r'<h2 id="[\w-]+">(.*?)</h2>', full)
    assert re.findall(r"<a [^>]*>(.*?)</a>", contents) == titles


def test_changes_and_deliveries_stand_beside_each_other(full: str) -> None:
    text = Page(full).text.split("Changes", 1)[1].split("Concentration", 1)[0]
    for text_part in (
        "compared with the lists of 2026-01-07",
        "43.2%",
        "0.568",
        "50.0% before",
        "1.2%",
        "0.091 chance gives 0.031",
        "1 lost, 2 gained",
        "jdbc:postgresql:app lists 180 77 13 1.5 s",
    ):
        assert text_part in text, text_part


def test_lists_that_were_held_back_are_told_with_their_limits(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    excess = {"figure": "churn", "setting": "max_churn", "value": 0.4321, "limit": 0.3}
    facts = {**CHANGES, "held_back": True, "excesses": [excess]}
    publish_facts(LakePaths(config.lake).list_changes.partition(RUN_DATE), facts)
    text = Page(build(config, RUN_DATE)[1]).text
    assert (
        "They were not published : they exceed score.stop.max_churn=0.3; the lists of 2026-01-07 are still"
        in text
    )


def test_expected_calibration_error_weighs_bins_by_rows(full: str) -> None:
    # |0.05 - (0.04 + 0.01 (i mod 3))| = 0.01, 0, 0.01, … over bins of 4000 // (i + 1) rows
    rows = [4000 // (index + 1) for index in range(9)]
    error = sum(count * 0.01 for index, count in enumerate(rows) if index % 3 != 1) / sum(rows)
    assert f"Expected calibration error {100 * error:.2f}%" in Page(full).text


def test_report_loads_nothing_from_anywhere(full: str) -> None:
    assert not re.search(r"https?:|//[\w.]+/|url\(|@import|<script|<link|<img|<iframe", full)
    for _, attributes in Page(full).tags:
        assert not {"src", "srcset", "data", "poster"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")


HOSTILE_TITLE = '<b>"T"</b> & more'


@pytest.mark.parametrize(
    "address, is_link",
    [
        ("https://a.example/1.jpg?a=1&b=2", True),
        ("http://a.example/1.jpg", True),
        ('https://a.example/" onclick="alert(1)', True),
        ("javascript:alert(1)", False),
        ("data:image/png;base64,AAAA", False),
        ("//a.example/1.jpg", False),
        ("https:", False),
        ("http://[", False),
        ("/pictures/1.jpg", False),
        (None, False),
    ],
)
def test_titles_are_text_and_pictures_are_links_to_the_web_only(address: str | None, is_link: bool) -> None:
    lists = [
        UserList("u1", [(1, "i1", 0.5, "ranked"), (2, "i2", 0.4, "ranked")], UserHistory({"i3": (2, 3)}))
    ]
    titles = {"i1": ItemTitle(HOSTILE_TITLE, address), "i2": ItemTitle("i2"), "i3": ItemTitle("Third")}
    markup = list_sections.render_sample(lists, "ranking", titles)
    page = Page(markup)
    links = [attributes for name, attributes in page.tags if name == "a"]
    assert [link["href"] for link in links] == ([address] if is_link else [])
    for link in links:
        assert link["title"] == link["aria-label"] == f"Picture of {HOSTILE_TITLE}"
        assert link["rel"] == "noreferrer noopener"
        assert "onclick" not in link
    assert not {name for name, _ in page.tags} & {"b", "img"}
    assert f"{HOSTILE_TITLE} i1" in page.text
    assert "Third i3 2 of 3" in page.text
    assert page.text.count("i2") == 1


def test_the_lists_name_the_context_with_which_they_were_scored() -> None:
    lists = [UserList("u1", [(1, "i1", 0.5, "ranked")], None)]
    markup = list_sections.render_sample(lists, "ranking", {}, {"hour": 19, "device": "<mobile>"})
    assert "The lists were scored with device = <mobile>, hour = 19." in Page(markup).text


def test_a_first_report_has_only_tiles_with_values(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    shutil.rmtree(lake.measures.path)
    evaluation = read_manifest(lake.evaluations.partition(RUN_DATE)).facts
    publish_facts(lake.evaluations.partition(RUN_DATE), {**evaluation, "baselines": {}})
    page = build(config, RUN_DATE)[1]
    tiles = page[page.index('class="tiles"') : page.index("</header>")]
    assert re.findall("<h3>(.*?)</h3>", tiles) == ["Model AUC", "Users served", "Item coverage"]
    assert "–" not in tiles


def test_the_report_reads_the_titles_of_its_date(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    lists = lake.recommendations.partition(RUN_DATE)
    items = sorted(set(read_table(lists, read_manifest(lists)).column("item_id").to_pylist()))
    rows = pa.table({"item_key": items, "title": [f"Title {number}" for number in range(len(items))]})
    publish_rows(rows, lake.item_titles.partition(RUN_DATE), inputs={}, row_group_rows=10, sort_by="item_key")
    text = Page(build(config, RUN_DATE)[1]).text
    for section in ("Coverage", "A few lists"):
        assert "Title 0" in text.split(section, 1)[1]


def test_values_of_the_log_are_text_and_never_markup(full: str) -> None:
    assert HOSTILE_ITEM not in full
    assert HOSTILE_ITEM in Page(full).text
    assert "<none>" not in full


def test_data_quality_shows_every_column_and_marks_what_is_above_a_limit(full: str) -> None:
    text = Page(full).text.split("Data quality", 1)[1].split("Calibration", 1)[0]
    for text_part in (
        "The log of 2026-01-08 against its 2 train days: 80 rows, 25.00% of them clicks (10.00% in training)",
        "2 figures are above a limit.",
        "warn 80 rows, 200 on the median train day 0.600 0.500 quality.row_shortfall_warn",
        "0.313 0.250 quality.psi_warn",
        # the column with a mark comes first
        "C2 warn 2.50% 0.00% 25 50.00% 0.313 0.042 I1 2.50% 0.00% 25 – – –",
        "</td><b> 25.00% –",
        f"{HOSTILE_ITEM} 40.00% 10.00%",
        "-5 to 1.23457e+06, mean 40.25",
    ):
        assert text_part in text, text_part
    assert "stopped" not in text


def test_raw_values_in_data_quality_are_text_and_short(full: str) -> None:
    assert "<img" not in full
    assert "</td><b>" not in full
    assert full.count("onerror") == 1
    assert "…" in Page(full).text.split("new: ")[1][:60]


def test_data_quality_of_a_stopped_run_is_shown_without_a_dataset(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    for gone in ("datasets", "features", "models", "evaluations", "recommendations"):
        (tmp_path / gone).rename(tmp_path / f"away_{gone}")
    stopped = [replace(finding, level="stop") for finding in FINDINGS]
    publish_facts(LakePaths(config.lake).quality(config.name).partition(RUN_DATE), quality_facts(stopped))
    page = build(config, RUN_DATE)[1]
    assert "The job was stopped: no features were published." in Page(page).text
    assert "Rows of the log</strong> that could be parsed, by day." in page
    assert page.count('<strong class="stop">') == 4  # two findings, the PSI and its column
    publish_facts(LakePaths(config.lake).quality(config.name).partition(RUN_DATE), quality_facts([]))
    assert "Nothing is above a limit." in Page(build(config, RUN_DATE)[1]).text


def test_charts_are_named_for_screen_readers(full: str) -> None:
    charts = [attributes for name, attributes in Page(full).tags if name == "svg"]
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in charts)
    assert all(
        attributes["aria-label"] for name, attributes in Page(full).tags if attributes.get("role") == "region"
    )


def test_report_of_an_empty_lake_names_the_jobs_that_have_not_run(tmp_path: Path) -> None:
    page = Page(build(config_of(tmp_path), RUN_DATE)[1])
    for job in (
        "build_features",
        "train_model",
        "evaluate_model",
        "score_daily",
        "measure_recommendations",
        "nightly",
    ):
        assert job in page.text
    assert not [name for name, _ in page.tags if name == "svg"]


@pytest.mark.parametrize(
    "gone", ["evaluations", "recommendations", "measures", "datasets", "models", "logs", "quality"]
)
def test_report_stands_when_one_kind_of_facts_is_missing(tmp_path: Path, gone: str) -> None:
    config = make_lake(tmp_path)
    (tmp_path / gone).rename(tmp_path / f"away_{gone}")
    page = Page(build(config, RUN_DATE)[1])
    assert [attributes["id"] for name, attributes in page.tags if name == "section"] == _SECTIONS


def test_measure_of_the_day_before_is_shown_with_its_date(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    page = Page(build(config, "2026-01-09")[1])
    assert "lists of 2026-01-08" in page.text
    assert "No model was trained" not in page.text  # no lists either, so neither sentence about a model


def test_lists_are_compared_with_the_best_that_the_log_allows(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    text = Page(build(config, RUN_DATE)[1]).text
    assert "75.0% of the best possible hit rate of the log" in text
    assert "75.0% of the hit rate of the best possible lists" in text
    assert "Lists by the true click probability 20 27.5% 0.1450 65.0%" in text
    assert "Best possible lists 20 28.0% 0.1500 55.0%" in text
    publish_facts(
        LakePaths(config.lake).measures.partition(RUN_DATE), {**MEASURE, "truth": None, "cold_start": None}
    )
    assert "best possible lists" not in Page(build(config, RUN_DATE)[1]).text.lower()


def test_users_and_items_that_are_new_to_the_model_are_shown_apart(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    partition = LakePaths(config.lake).measures.partition(RUN_DATE)
    text = Page(build(config, RUN_DATE)[1]).text
    assert "Users known to the model 17 24.0% 11.0% 29.0%" in text
    assert "Users new to the model 3 12.3% 4.6% 23.4%" in text
    assert "Clicks on items new" not in text  # nobody clicked such an item
    assert "4 items are new to the model. They have 5.7% of the entries of all lists, and 6.8%" in text
    cold_start = {
        group: {k: v for k, v in of.items() if k != "best"} for group, of in MEASURE["cold_start"].items()
    }
    publish_facts(partition, {**MEASURE, "cold_start": cold_start})
    assert "Users new to the model 3 12.3% 4.6% " in Page(build(config, RUN_DATE)[1]).text
    nobody = {**cold_start, "new_users": cold_start["new_items"]}
    for measured in (nobody, None):  # an earlier release did not measure them
        publish_facts(partition, {**MEASURE, "cold_start": measured})
        assert "new to the model" not in Page(build(config, RUN_DATE)[1]).text


def test_what_could_rank_the_lists_is_shown_with_the_choice(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    assert "Possible rankings of these lists" not in Page(build(config, RUN_DATE)[1]).text
    contenders = [
        {"name": name, "hit_rate": 0.1 * place, "ndcg": 0.05 * place}
        for place, name in enumerate(("model", "als", "blend"), 1)
    ]
    blend = {"k": 10, "users": 942, "chosen": "blend", "contenders": contenders}
    publish_facts(LakePaths(config.lake).measures.partition(RUN_DATE), {**MEASURE, "blend": blend})
    text = Page(build(config, RUN_DATE)[1]).text
    assert "measured for 942 users by clicks of the validation split" in text
    assert "Model alone 10.0% 0.0500" in text
    assert "Source als alone 20.0% 0.1000" in text
    assert "Blend of the model and all sources (chosen) 30.0% 0.1500" in text


def test_an_experiment_is_shown_with_its_variants_and_intervals(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    assert "Experiment" not in Page(build(config, RUN_DATE)[1]).text
    variant = {"model_version": MODEL, "users": 90, "clicked": 30, "hit_rate": 0.2, "ndcg": 0.125, "mrr": 0.1}
    between = {"difference": -0.01, "low": -0.03, "high": 0.01}
    relative = {"relative_difference": -0.1, "relative_low": -0.25, "relative_high": 0.05}
    differences = {"ndcg": {**between, **relative}}
    facts: dict[str, Any] = {
        "name": "deep",
        "share": 0.25,
        "confidence": 0.9,
        "variants": {"control": {**variant, "coverage": 0.5}, "treatment": {**variant, "coverage": 0.25}},
        "differences": differences,
        "sample_ratio_p": {"users": 0.4, "clicked": 0.5},
        "total": {"days": ["2026-01-07", RUN_DATE], "left_out": ["2026-01-06"], "differences": differences},
        "stops_on": None,
    }
    partition = LakePaths(config.lake).measures.partition(RUN_DATE)
    publish_facts(partition, {**MEASURE, "experiment": facts})
    text = Page(build(config, RUN_DATE)[1]).text
    assert "Experiment deep : 25.0% of the users" in text
    assert "treatment 01234567 90 30 20.0% 0.1250 0.1000 25.0%" in text
    assert "Differences of 2 dates, 2026-01-07 to 2026-01-08; 1 date with other models" in text
    assert "NDCG @10 -0.0100 -0.0300 to 0.0100 -10.0% -25.0% to 5.0%" in text
    assert "guard rail" not in text
    assert "do not fit the configured share" not in text
    facts |= {"sample_ratio_p": {"users": 0.4, "clicked": 1e-9}, "stops_on": "2026-01-10"}
    publish_facts(partition, {**MEASURE, "experiment": facts})
    text = Page(build(config, RUN_DATE)[1]).text
    assert "The guard rail stops the experiment on 2026-01-10." in text
    assert "do not fit the configured share (p=1e-09)" in text


def test_shown_entries_have_click_rates_by_position_and_reasons(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    assert "Shown entries" not in Page(build(config, RUN_DATE)[1]).text
    first = {"shown": 60, "clicked": 12, "click_rate": 0.2, "low": 0.125, "high": 0.25}
    second = {"shown": 0, "clicked": 0, "click_rate": None, "low": None, "high": None}
    facts: dict[str, Any] = {
        "day": "2026-01-09",
        "users": 80,
        "users_shown": 60,
        "entries": 800,
        "entries_shown": 60,
        "clicked_not_shown": 3,
        "impressions": 64,
        "unmatched": {"user": 4},
        "confidence": 0.95,
        "variants": {"all": {**first, "positions": [{"position": 1, **first}, {"position": 2, **second}]}},
    }
    partition = LakePaths(config.lake).measures.partition(RUN_DATE)
    publish_facts(partition, {**MEASURE, "impressions": facts})
    text = Page(build(config, RUN_DATE)[1]).text
    assert "On 2026-01-09, 75.0% of the users with a list of" in text
    assert "saw entries of their lists. These are 7.5% of all entries." in text
    assert "3 entries were clicked, but are not in the log of impressions." in text
    assert "all 1 60 12 20.0% 12.5% to 25.0%" in text
    assert "all 2 0" not in text
    assert "user without a list 4 6.2%" in text
    assert "Explored positions" not in text
    rate = {"value": 0.2, "low": 0.125, "high": 0.25}
    facts["explored"] = {"effective_entries": 1234.5, "click_rate": rate, "by_score": rate, "reason": None}
    facts["explored"]["equal_scores"] = 2
    publish_facts(partition, {**MEASURE, "impressions": facts})
    text = Page(build(config, RUN_DATE)[1]).text
    assert "Explored positions, 1,234 effective entries; 2 entries of equal scores left out" in text
    assert "In the order of the scores 20.0% 12.5% 25.0%" in text
    assert "Not estimated" not in text
    facts["explored"] = {"reason": "the section score has changed"}
    publish_facts(partition, {**MEASURE, "impressions": facts})
    assert "Not estimated: the section score has changed" in Page(build(config, RUN_DATE)[1]).text


def test_shares_of_users_and_items_without_a_row_are_shown(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    assert "Without a row" not in Page(build(config, RUN_DATE)[1]).text
    publish_facts(lake.users(WORKFLOW).partition(RUN_DATE), MissingRows("users", 80, 30).to_facts())
    publish_facts(lake.items(WORKFLOW).partition(RUN_DATE), MissingRows("items", 1000, 1).to_facts())
    text = Page(build(config, RUN_DATE)[1]).text
    assert "Users and items of the log without a row in their table" in text
    assert "users 80 30 37.50%" in text
    assert "items 1,000 1 0.10%" in text
    assert "30 of 80 users of the log have no row in the table `users` 0.375 0.100" in text
    assert "1 of 1000 items" not in text, "the share is below its limit"


def test_kept_champion_is_the_one_whose_figures_are_shown(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    partition = LakePaths(config.lake).evaluations.partition(RUN_DATE)
    facts = dict(read_manifest(partition).facts)
    champion = {**facts["challenger"], "version": "champion00000000", "auc": 0.8011}
    publish_facts(partition, {**facts, "champion": champion, "promoted": False, "reason": "worse by 0.0027"})
    run = read_run_facts(config, RUN_DATE)
    assert run.judged is not None
    assert run.judged["auc"] == 0.8011
    assert ", was not promoted : worse by 0.0027" in Page(build(config, RUN_DATE)[1]).text


def test_the_refit_that_made_the_lists_is_named_and_its_champion_is_described(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    partition = lake.recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    assert "the refit of" not in Page(build(config, RUN_DATE)[1]).text
    facts = {**manifest.facts, "model_version": "refit00000000000", "refit_of": MODEL}
    replace_manifest(partition, replace(manifest, facts=facts))
    sentence = f"The lists are from refit00000000000 , the refit of {MODEL} on the rows of all three splits."
    assert sentence in Page(build(config, RUN_DATE)[1]).text
    Path(lake.evaluations.partition(RUN_DATE).path).rename(tmp_path / "away")
    run = read_run_facts(config, RUN_DATE)
    assert run.model is not None
    assert run.model["version"] == MODEL
    assert sentence in Page(build(config, RUN_DATE)[1]).text


def test_the_bars_of_click_rates_have_the_unit_of_their_axis(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    run, text = read_run_facts(config, RUN_DATE), build(config, RUN_DATE)[1]
    chart = text.partition("share of rows with a click, by day.")[2].partition("</svg>")[0]
    assert ">click rate, %<" in chart
    bars = re.findall(r"<title>(\d\d-\d\d): ([\d.]+)</title>", chart)
    rates = [(day.dt[5:], round(100 * (day.click_rate or 0.0), 3)) for day in run.days]
    assert [(day, float(percent)) for day, percent in bars] == rates
    assert len(rates) == 4


def test_the_gate_shows_the_interval_its_limit_and_every_check(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    partition = LakePaths(config.lake).evaluations.partition(RUN_DATE)
    facts = dict(read_manifest(partition).facts)
    assert "There was no champion to compare with" in Page(build(config, RUN_DATE)[1]).text
    warned = {
        "name": "auc",
        "level": "ok",
        "said": "AUC <b>",
        "value": 1.0,
        "limit": 0.002,
        "setting": "gate.margin",
    }
    held = {**warned, "name": "oov_share", "level": "hold", "said": "many new ids", "setting": None}
    between = {"difference": 0.0022, "low": -0.0008, "high": 0.0051, "confidence": 0.95, "replicates": 990}
    ndcg = {**between, "difference": -0.004, "low": -0.0125, "high": 0.0045}
    figures = {"items": 800, "hit_rate": 0.4321, "ndcg": 0.2104}
    lists = {"k": 10, "users": 1_000, "skipped": None, "challenger": figures}
    more = {
        "intervals": {"auc": between, "ndcg": ndcg},
        "lists_margin": 0.02,
        "lists": {**lists, "champion": {**figures, "ndcg": 0.2144}},
        "resampled": {"by": "user", "count": 4_000},
        "checks": [held, {**held, "name": "score_psi", "level": "warn", "said": "drifted"}, warned],
        "drift": {"feature_psi": {"C7": 0.412}, "oov_share": {"C1": 0.0625}},
    }
    publish_facts(partition, {**facts, **more})
    page = Page(build(config, RUN_DATE)[1])
    for words in (
        "with 95% confidence: it comes from 990 resamples of 4,000 users",
        "of the interval is not below minus gate.margin , 0.002.",
        "Unknown ids hold many new ids",
        "warn drifted",
        "AUC ok AUC <b> gate.margin",
        "C7 0.412",
        "C1 6.25%",
        "Lists of 1,000 users",
        "challenger 0.4321 0.2104 800 champion 0.4321 0.2144 800",
        "Gain in NDCG@10 of lists",
    ):
        assert words in page.text
    chart = next(
        attributes["aria-label"]
        for name, attributes in page.tags
        if name == "svg" and str(attributes["aria-label"]).startswith("Gain in AUC")
    )
    of_lists = [
        str(attributes["aria-label"])
        for name, attributes in page.tags
        if name == "svg" and str(attributes["aria-label"]).startswith("Gain in NDCG")
    ]
    assert of_lists == [
        "Gain in NDCG@10 of lists. challenger minus champion -0.0040, interval from -0.0125 to +0.0045; "
        "the interval must not begin below -0.0200"
    ]
    first = {**facts, "lists": {**lists, "champion": None}}
    publish_facts(partition, first)
    page_of_first = Page(build(config, RUN_DATE)[1]).text
    assert "challenger 0.4321 0.2104 800" in page_of_first
    assert "Gain in NDCG" not in page_of_first
    skipped = {**lists, "challenger": None, "champion": None, "users": 0, "skipped": "no keys"}
    publish_facts(partition, {**facts, "lists": skipped})
    assert "Lists of" not in Page(build(config, RUN_DATE)[1]).text
    assert chart == (
        "Gain in AUC. challenger minus champion +0.0022, interval from -0.0008 to +0.0051; "
        "the interval must not begin below -0.0020"
    )


def test_second_run_adds_the_table_of_runs(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    before = {**read_manifest(lake.evaluations.partition(RUN_DATE)).facts, "promoted": False}
    publish_facts(lake.evaluations.partition("2026-01-07"), before)
    page = Page(build(config, RUN_DATE)[1])
    assert "The last 2 runs" in page.text
    assert f"2026-01-07 – kept 0.7984 0.8142 95.0% 0.7103 – – – 2026-01-08 {MODEL[:8]} promoted" in page.text


def test_sampled_users_have_their_whole_list_and_their_own_history(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    partition = lake.recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    lists = run_facts.sample_lists(lake, partition, manifest, None, 3)
    assert [user_list.user for user_list in lists] == ["user03", "user10", "user16"]
    assert all([position for position, *_ in user_list.entries] == list(range(1, 10)) for user_list in lists)
    assert {
        (position == 9, reason) for user_list in lists for position, _, _, reason in user_list.entries
    } == {
        (True, "explore"),
        (False, f"boost:{HOSTILE_ITEM}"),
    }
    assert all(user_list.history is None for user_list in lists)


def test_items_that_were_shown_but_not_clicked_are_not_like_new_items() -> None:
    entries = [(1, "new", 0.5, "ranked"), (2, "shown", 0.4, "ranked"), (3, "clicked", 0.3, "ranked")]
    user_list = UserList("u1", entries, UserHistory({"shown": (0, 4), "clicked": (2, 3)}))
    text = Page(list_sections.render_sample([user_list], "click_probability", {})).text
    assert "1 new 50.0% ranked – 2 shown 40.0% ranked 0 of 4 3 clicked 30.0% ranked 2 of 3" in text


def test_history_orders_by_clicks_then_item() -> None:
    history = run_facts.UserHistory({"b": (2, 3), "a": (2, 9), "c": (5, 5), "d": (0, 7)})
    assert history.most_clicked(3) == [("c", 5, 5), ("a", 2, 9), ("b", 2, 3)]


def test_item_counts_conserve_entries_and_say_when_they_are_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_lake(tmp_path)
    partition = LakePaths(config.lake).recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    whole = run_facts.count_items(partition, manifest)
    assert (whole.rows, whole.of_rows, whole.times[HOSTILE_ITEM]) == (180, 180, 20)
    monkeypatch.setattr(run_facts, "MOST_ROWS", 90)
    part = run_facts.count_items(partition, manifest)
    assert (part.rows, part.of_rows) == (90, 180)
    assert "Counted in 90 of 180 entries" in Page(build(config, RUN_DATE)[1]).text


def test_stage_seconds_leave_out_failed_stages_and_the_report_itself(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    folder = tmp_path / f"logs/dt={RUN_DATE}"
    folder.mkdir(parents=True)
    (folder / "train_model.log").write_text("it failed\n")
    for job in ("score_daily", "report"):
        (folder / f"{job}.log").write_text(
            json.dumps({"job": job, "seconds": {"session": 2.0, "total": 3.0}})
        )
    stage_times = read_stage_times(lake, RUN_DATE, "generated")
    assert [(stage.stage, stage.total_s, dict(stage.phases_s)) for stage in stage_times] == [
        ("score_daily", 3.0, {"session": 2.0})
    ]


def test_job_writes_the_page_and_its_closing_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_lake(tmp_path)
    arguments = [
        "--config",
        "conf/datasets/generated.yaml",
        "--run-date",
        RUN_DATE,
        "--set",
        f"lake={tmp_path}",
    ]
    with pytest.raises(SystemExit) as ended:
        run_job("report", "", report.run, arguments)
    assert ended.value.code == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    written = Path(summary["output"])
    assert written == tmp_path / f"reports/{RUN_DATE}.html"
    assert written.stat().st_size == summary["bytes"]


def test_markup_escapes_everything_but_markup() -> None:
    element = tag("p", "<b>", Html("<i>x</i>"), None, 3, title='a"b', hidden=True, lang=None)
    assert element == '<p title="a&quot;b" hidden>&lt;b&gt;<i>x</i>3</p>'
    assert join(["a&b"]) == "a&amp;b"
    assert "&lt;td&gt;" in table(["n"], [["<td>"]], "c")


def test_day_cut_into_splits_is_shown_by_split_and_counted_once(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    partition = lake.features(WORKFLOW).partition(RUN_DATE)
    manifest = read_manifest(partition)
    train, test = manifest.files
    cut = replace(manifest, files=(replace(train, split="train"), replace(test, split="test")))
    replace_manifest(partition, cut)
    splits = {name: (Member(RUN_DATE, cut.digest, name),) for name in ("test", "train")}
    publish_dataset(lake, Dataset(RUN_DATE, WORKFLOW, splits, "fit"), "2026-01-09T00:00:00Z")
    run = read_run_facts(config, RUN_DATE)
    assert [(day.split, day.rows) for day in run.days] == [("train", 100), ("test", 100)]
    text = Page(build(config, RUN_DATE)[1]).text
    assert "4 of 204 raw rows" in text
    assert "after dropping, by split." in text


def _choices(root: Path) -> Config:
    """A lake of a run whose model compares items, and a configuration that draws negatives."""
    config = make_lake(root)
    lake = LakePaths(config.lake)
    description = f"{lake.models(config.name)}/{MODEL}/model.json"
    file_io.replace_json(description, {**file_io.read_json(description), "scores": "ranking"})
    partition = lake.evaluations.partition(RUN_DATE)
    facts = dict(read_manifest(partition).facts)
    names = ("log_loss", "normalized_entropy", "calibration")
    facts["challenger"] = {**facts["challenger"], **dict.fromkeys(names), "scores": "ranking"}
    publish_facts(partition, {**facts, "best_auc": None})
    partition = lake.recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    replace_manifest(partition, replace(manifest, facts={**manifest.facts, "scores": "ranking"}))
    return load_config("conf/datasets/generated.yaml", [f"lake={root}", "negatives={per_positive: 1}"])


def test_scores_of_choices_are_not_called_probabilities_or_click_rates(tmp_path: Path) -> None:
    text = Page(build(_choices(tmp_path), RUN_DATE)[1]).text
    without_truth = text.replace("Lists by the true click probability", "").replace(
        "the highest true prob", ""
    )
    for words in (
        "robability ",
        "lick rate of",
        "share of rows with a click",
        "Reliability",
        "log loss",
        "ntropy",
    ):
        assert words not in without_truth.replace("because the section negatives", ""), words
    assert "Scores The loss of the training compares items" in text
    assert "# Item Score Why Before 1 <script>alert('x')</script> 0.9000" in text
    assert "score of every test row." in text
    assert "on the test rows: chosen items against random items" in text
    assert "20 choices in 80 rows (40 choices in 400 rows in training)" in text
    assert "Not compared: the click rate, because the section negatives sets how many rows are no" in text


def test_rows_that_were_drawn_are_no_impressions_of_a_user(tmp_path: Path) -> None:
    config = _choices(tmp_path)
    lake = LakePaths(config.lake)
    dataset, users = read_dataset(lake, RUN_DATE), ["user03", "user07"]

    def rows(negatives: Negatives | None) -> int:
        found = run_facts.histories(lake, dataset, users, negatives).values()
        return sum(shown for history in found for _, shown in history.items.values())

    days = [member.dt for members in dataset.splits.values() for member in members]
    partitions = [lake.features(WORKFLOW).partition(dt) for dt in days]
    tables = [read_table(partition, read_manifest(partition)) for partition in partitions]
    table = pa.concat_tables(tables).to_pandas()
    table = table[table.user_key.isin(users)]
    assert rows(None) == len(table)
    assert rows(config.negatives) == (table.row_id % 2 == 0).sum() < len(table)


def test_a_log_that_has_only_clicks_has_choices_and_no_click_rate(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    partition = LakePaths(config.lake).quality(config.name).partition(RUN_DATE)
    facts = dict(read_manifest(partition).facts)
    pieces = [{**piece, "clicks": piece["rows"]} for piece in facts["pieces"]]
    publish_facts(partition, {**facts, "pieces": pieces, "findings": []})
    text = Page(build(config, RUN_DATE)[1]).text.split("Data quality")[1].split("Training", 1)[0]
    assert "80 choices in 80 rows (400 choices in 400 rows in training). Nothing is above a limit." in text
    assert "Not compared: the click rate, because every row is a click." in text
    assert "100.00%" not in text.split("Columns of the day")[0]


def test_what_can_be_one_is_counted_as_one(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    description = f"{LakePaths(config.lake).models(config.name)}/{MODEL}/model.json"
    ones = {"train_rows": 1, "steps": 1, "num_ranks": 1}
    file_io.replace_json(description, {**file_io.read_json(description), **ones})
    partition = LakePaths(config.lake).quality(config.name).partition(RUN_DATE)
    publish_facts(partition, quality_facts(FINDINGS[:1]))
    text = Page(build(config, RUN_DATE)[1]).text
    assert "on 1 row in 1 step by 1 rank." in text
    assert "1 figure is above a limit." in text
    assert not re.search(r"\b1 (rows|days|users|items|ranks|steps|figures|stages|entries|columns)\b", text)
