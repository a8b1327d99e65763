"""The page and the terminal table of a comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from reporting.html.page import best_so_far, comparison_page
from reporting.inspect.model_tables import comparison_text
from training.registry.comparison import (
    Comparison,
    ExperimentOutcome,
    SearchResult,
    TrainingOutcome,
    ValidationMeasures,
)

DATE, COMMAND = "2026-01-08", "python jobs/nightly.py --set 'train.epochs=<3>'"


def training(seed: int, version: str, losses: list[float], test_loss: float) -> TrainingOutcome:
    """One evaluation an epoch; AUC is 1 - log loss."""

    def measures(loss: float) -> dict[str, float | None]:
        return {"auc": 1 - loss, "log_loss": loss, "normalized_entropy": loss}

    curve = [ValidationMeasures(float(epoch), measures(loss)) for epoch, loss in enumerate(losses, 1)]
    return TrainingOutcome(
        seed, version, None, measures(losses[-1]), measures(test_loss), curve, 1_000.0, None
    )


def outcome(name: str, losses: list[list[float]], test_loss: float, **changes: Any) -> ExperimentOutcome:
    trainings = [training(seed, f"{name}{seed}", values, test_loss) for seed, values in enumerate(losses)]
    return ExperimentOutcome(
        name, {key.replace("__", "."): value for key, value in changes.items()}, trainings
    )


COMPARISON = Comparison(
    "trial",
    "log_loss",
    [
        outcome("base", [[0.6, 0.4], [0.6, 0.5]], 0.1),
        outcome("<b>wide</b>", [[0.5, 0.30], [0.3, 0.34]], 0.9, model__top_mlp=[16, 8], model="/a/b/fm.yaml"),
        ExperimentOutcome("broken", {"train.epochs": 3}, [TrainingOutcome(0, "x", "loss is nan\nremedy")]),
    ],
)


class Cells(HTMLParser):
    """The text of each cell of the page's tables, by row, and the addresses that the page names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        if name == "tr":
            self.rows.append([])
        if name in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True
        self.addresses += [value or "" for key, value in attributes if key in ("href", "src")]

    def handle_endtag(self, name: str) -> None:
        if name in ("td", "th"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


ROWS = [
    [
        *("1", "<b>wide</b>", "model.top_mlp=[16, 8], model=fm.yaml", "2"),
        *("0.6800 ± 0.0283", "0.3200 ± 0.0283", "2, 1", "2,000.0", "0.1000 ± 0.0000", "0.9000 ± 0.0000"),
        "<b>wide</b>0 <b>wide</b>1",
    ],
    [
        *("2", "base", "none", "2", "0.5500 ± 0.0707", "0.4500 ± 0.0707", "2, 2", "2,000.0"),
        *("0.9000 ± 0.0000", "0.1000 ± 0.0000", "base0 base1"),
    ],
    ["–", "broken", "train.epochs=3", "1", "–", "–", "–", "0.0", "–", "–", ""],
]


def test_the_page_has_the_table_the_failures_and_the_command() -> None:
    page = comparison_page(COMPARISON, DATE, COMMAND)
    measures, failures, details = _tables(page)
    assert [row[:2] for row in measures] == [["", "Experiment"], *(row[:2] for row in ROWS)]
    # Log loss decides, so it comes first.
    assert [row[2:] for row in measures[1:]] == [[row[5], row[4], row[9], row[8]] for row in ROWS]
    assert failures[1:] == [["broken", "0", "loss is nan\nremedy"]]
    assert details[1:] == [[row[1], row[2], row[3], row[6], row[7], row[10]] for row in ROWS]
    assert "<b>wide" not in page
    assert "The test split was not used for this choice." in page
    assert "train.epochs=&lt;3&gt;" in page


def _tables(page: str) -> list[list[list[str]]]:
    """The rows of each table of the page, with the header."""
    return [Cells(part).rows for part in re.findall(r"<table>.*?</table>", page, flags=re.DOTALL)]


def test_the_answer_comes_before_the_curves() -> None:
    page = comparison_page(COMPARISON, DATE, COMMAND)
    assert re.findall(r'<section id="(\w+)"', page) == ["experiments", "failures", "use", "curves", "details"]
    head = re.sub(r"<.*?>", "", page[page.index("<header>") : page.index("</header>")])
    assert "is &lt;b&gt;wide&lt;/b&gt;, with log loss 0.3200 ± 0.0283 on the validation split" in head
    assert "The second, base, is 0.1300 away, more than the standard deviation over seeds (0.0707)." in head


def test_a_lead_within_the_spread_of_seeds_is_named_as_such() -> None:
    close = [outcome("first", [[0.40], [0.44]], 0.5), outcome("second", [[0.41], [0.44]], 0.5)]
    page = comparison_page(Comparison("close", "log_loss", close), DATE, COMMAND)
    assert "is 0.0050 away, not more than the standard deviation over seeds (0.0283)." in page
    one_seed = [outcome("first", [[0.40]], 0.5), outcome("second", [[0.41]], 0.5)]
    page = comparison_page(Comparison("close", "log_loss", one_seed), DATE, COMMAND)
    assert "The second, second, is 0.0100 away. The test split" in page


def test_the_chosen_measure_has_a_column_of_its_own() -> None:
    page = comparison_page(replace(COMPARISON, choose_by="normalized_entropy"), DATE, COMMAND)
    assert _tables(page)[0][0][2:5] == [
        "Validation normalised entropy",
        "Validation AUC",
        "Validation log loss",
    ]


def test_the_page_opens_offline() -> None:
    page = comparison_page(COMPARISON, DATE, COMMAND)
    assert all(address.startswith("#") for address in Cells(page).addresses)
    assert "default-src &#x27;none&#x27;" in page
    assert not re.search(r"<script|@import|url\(|https?://", page)


def test_the_curves_are_means_over_seeds() -> None:
    page = comparison_page(COMPARISON, DATE, COMMAND)
    charts = re.findall(r'<svg.*?aria-label="([^"]*)".*?</svg>', page)
    curves = ["Validation log loss", "Validation AUC"]
    assert [chart.split(".")[0] for chart in charts] == ["Validation log loss", *curves]
    dots = re.findall(r"<title>([\d.]+: [\d.]+)</title>", page)
    assert dots[:4] == ["1: 0.4", "2: 0.32", "1: 0.6", "2: 0.45"]


def test_only_the_best_experiments_have_curves() -> None:
    many = [outcome(f"e{place}", [[0.9, 0.8 - place / 100]], 0.5) for place in range(12)]
    page = comparison_page(Comparison("many", "log_loss", many), DATE, COMMAND)
    assert "The charts show the 8 best of 12 experiments." in page
    legend = re.search(r'<div class="legend">.*?</div>', page)
    assert legend
    assert re.findall(r"</i>(e\d+)", legend[0]) == [f"e{place}" for place in range(11, 3, -1)]
    assert "line series-7" in page
    assert "series-8" not in page
    assert [len(rows) for rows in _tables(page)] == [13, 13]


def test_the_terminal_shows_the_same_rows() -> None:
    lines = comparison_text(COMPARISON, DATE, COMMAND).splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    for row in ROWS:
        assert [cell for cell in row if cell] in rows
    assert "  broken failed: loss is nan" in lines
    assert f"    {COMMAND}" in lines
    assert any("The test split is only reported." in line for line in lines)
    assert any(
        line.startswith("  Best: <b>wide</b>, with validation log loss 0.3200 ± 0.0283") for line in lines
    )


def test_losses_without_probabilities_have_no_log_loss_to_draw() -> None:
    """The trainings of a loss over items: their measures of probabilities are null."""

    def without(measures: Mapping[str, float | None]) -> dict[str, float | None]:
        return {"auc": measures["auc"], "log_loss": None, "normalized_entropy": None}

    def ranking(outcome: TrainingOutcome) -> TrainingOutcome:
        curve = [replace(evaluation, measures=without(evaluation.measures)) for evaluation in outcome.curve]
        held_out = {"validation": without(outcome.validation), "test": without(outcome.test)}
        return replace(outcome, **held_out, curve=curve)

    experiments = [
        replace(experiment, trainings=[ranking(training) for training in experiment.trainings])
        for experiment in COMPARISON.experiments[:2]
    ]
    comparison = replace(COMPARISON, choose_by="auc", experiments=experiments)
    page = comparison_page(comparison, DATE, COMMAND)
    assert "Validation AUC" in page
    assert "no values to draw" not in page
    headers, *rows = _tables(page)[0]
    assert {row[headers.index("Validation log loss")] for row in rows} == {"–"}
    assert "log loss" not in comparison_text(comparison, DATE, COMMAND).split("Changed settings")[0]


def _trial(
    number: int, losses: list[float], rate: float, layers: list[int], pruned: float | None = None
) -> Any:
    one = training(0, f"v{number}", losses, 0.5)
    if pruned is not None:
        one = replace(one, validation={}, test={}, pruned=pruned)
    changes = {"train.learning_rate": rate, "model.top_mlp": layers}
    return ExperimentOutcome(f"trial {number}", changes, [one], number)


SEARCH = Comparison(
    "searched",
    "log_loss",
    [
        _trial(1, [0.6, 0.5], 0.001, [8]),
        _trial(2, [0.6, 0.55], 0.09876543, [16, 8]),
        _trial(4, [0.7], 0.0002, [8], pruned=1.0),
        _trial(5, [0.5, 0.41], 0.01, [16, 8]),
        ExperimentOutcome(
            "trial 6", {"train.learning_rate": 0.1, "model.top_mlp": [8]}, [TrainingOutcome(0, "", "nan")], 6
        ),
    ],
    SearchResult(
        {
            "train.learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
            "model.top_mlp": {"choices": [[8], [16, 8]], "log": False},
        },
        planned=9,
        done=6,
        repeated=[(3, 1)],
    ),
)


def test_a_search_has_a_chart_of_its_progress_and_one_for_each_setting() -> None:
    page = comparison_page(SEARCH, DATE, COMMAND)
    assert "<h1>Trials on the dataset of 2026-01-08</h1>" in page
    head = re.sub(r"<.*?>", "", page[page.index("<header>") : page.index("</header>")])
    assert "The best of 5 trials is trial 5 (train.learning_rate=0.01, model.top_mlp=[16, 8]), with" in head
    search_section = re.search(r'<section id="search".*?</section>', page, flags=re.DOTALL)
    assert search_section
    text = re.sub(r"<.*?>", " ", search_section[0])
    assert "6 of 9 trials were done, because the search reached its time limit" in text
    assert "3 complete, 1 pruned, 1 failed." in text
    assert "1 other trial had the settings of an earlier trial" in text
    charts = re.findall(r'<svg.*?aria-label="([^"]*)".*?</svg>', search_section[0], flags=re.DOTALL)
    assert [chart.split(". ")[0] for chart in charts] == [
        "Validation log loss by trial",
        "Validation log loss by train.learning_rate",
        "Validation log loss by model.top_mlp",
    ]
    assert search_section[0].count('class="dot series-0"') == 3 * 3
    assert search_section[0].count('class="hollow series-1"') == 3
    assert "<title>pruned, trial 4: 0.7</title>" in search_section[0]
    assert "<title>complete, train.learning_rate 0.0987654: 0.55</title>" in search_section[0]
    assert "<title>complete, model.top_mlp [16, 8]: 0.41</title>" in search_section[0]
    assert search_section[0].count('class="line series-0"') == 1


def test_pruned_trials_are_named_as_such_and_come_before_failed_ones() -> None:
    page, table = comparison_page(SEARCH, DATE, COMMAND), comparison_text(SEARCH, DATE, COMMAND)
    measures = _tables(page)[0]
    assert [row[:2] for row in measures[1:]] == [
        ["1", "trial 5"],
        ["2", "trial 1"],
        ["3", "trial 2"],
        ["–", "trial 4 (pruned after 1 epoch)"],
        ["–", "trial 6"],
    ]
    assert measures[4][2:] == ["–"] * 4
    assert "trial 4 (pruned after 1 epoch)" in table
    assert "train.learning_rate=0.0987654, model.top_mlp=[16, 8]" in table


def test_the_line_of_the_best_value_has_steps() -> None:
    points = [(1.0, 0.5), (2.0, 0.6), (4.0, 0.4)]
    falling = [(1.0, 0.5), (2.0, 0.5), (2.0, 0.5), (4.0, 0.5), (4.0, 0.4)]
    assert best_so_far(points, "log_loss") == falling
    assert best_so_far(points, "auc")[-1] == (4.0, 0.6)
    assert best_so_far([], "auc") == []


def test_the_facts_of_a_search_give_the_same_comparison() -> None:
    facts = json.loads(json.dumps(SEARCH.facts()))
    again = Comparison.from_facts(facts)
    assert json.loads(json.dumps(again.facts())) == facts
    assert comparison_text(again, DATE, COMMAND) == comparison_text(SEARCH, DATE, COMMAND)
    assert facts["versions"] == ["v1", "v2", "v4", "v5"]
