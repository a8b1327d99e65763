"""The Outbrain-shaped log: displays of several ads with one click, and facts that match the lines."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from datetime import date, timedelta
from fractions import Fraction

import numpy as np
import pytest
from pydantic import ValidationError

from conf.types import Generate
from etl.synthetic.generate import kind_of
from etl.synthetic.lines import WHOLE, total
from etl.synthetic.outbrain import (
    OUTBRAIN,
    Displays,
    DisplayWorld,
    column_texts,
    draw_displays,
    draw_world,
    likeness,
    summarise,
)

DAY = date(2026, 1, 8)
SMALL = {"layout": "outbrain", "rows_per_day": 6000, "users": 300, "items": 150, "files_per_day": 2}


def config(**settings: object) -> Generate:
    return Generate.model_validate({**SMALL, **settings})


def lines_and_facts(settings: Generate) -> tuple[list[list[str]], dict]:
    kind = kind_of(settings)
    all_rows: list[list[str]] = []
    counts = []
    for file in range(settings.files_per_day):
        parts = list(kind.blocks(settings, DAY, file))
        header, *rows = csv.reader(b"".join(text for text, _ in parts).decode().splitlines())
        assert tuple(header) == OUTBRAIN.names
        all_rows += rows
        counts += [summary for _, summary in parts]
    return all_rows, kind.facts(settings, DAY, total(counts))


def displays_of(settings: Generate) -> tuple[DisplayWorld, Displays]:
    world = draw_world(settings, DAY)
    return world, draw_displays(world, np.random.default_rng(1), 4000, (0.0, 1.0))


def test_a_display_shows_2_to_12_different_ads_and_one_is_clicked() -> None:
    rows, facts = lines_and_facts(config(malformed_share=0))
    shown = defaultdict(list)
    for row in rows:
        shown[row[1]].append((row[0], row[3], row[2], row[4], row[5]))
    assert facts["displays"] == len(shown) == facts["positives"]
    assert facts["rows"] == len(rows) == pytest.approx(6000, rel=0.05)
    for ads in shown.values():
        assert 2 <= len(ads) <= 12
        assert sorted(clicked for clicked, *_ in ads) == ["0"] * (len(ads) - 1) + ["1"]
        assert len({ad for _, ad, *_ in ads}) == len(ads)
        assert len({(user, time) for _, _, user, time, _ in ads}) == 1
    times = [int(row[4]) for row in rows]
    assert times == sorted(times)
    chance = sum(sum(Fraction(1, n) for n in range(1, len(ads) + 1)) / len(ads) for ads in shown.values())
    assert facts["random_map_at_12"] == pytest.approx(float(chance / len(shown)), abs=1e-12)


def test_bytes_are_reproducible_and_differ_by_day() -> None:
    kind, settings = kind_of(config()), config()
    first, again = (b"".join(text for text, _ in kind.blocks(settings, DAY, 1)) for _ in range(2))
    assert first == again
    later = b"".join(text for text, _ in kind.blocks(settings, DAY + timedelta(days=1), 1))
    assert first != later


def test_facts_count_empty_fields_and_broken_rows() -> None:
    rows, facts = lines_and_facts(config(missing_share=0.05, malformed_share=0.03))
    names = OUTBRAIN.names
    whole = [row for row in rows if len(row) == len(names) and row[0] in "01" and all(row[1:5])]
    whole = [row for row in whole if all(field != "n/a" for field in row[: len(names)])]
    assert facts["malformed_rows"] == len(rows) - len(whole) == pytest.approx(0.03 * len(rows), rel=0.3)
    assert sum(facts["malformed"].values()) == facts["malformed_rows"]
    empty = Counter(name for row in whole for name, field in zip(names, row, strict=True) if not field)
    assert {name: count for name, count in facts["missing"].items() if count} == dict(empty)
    assert not {"clicked", "display_id", "uuid", "ad_id", "timestamp"} & set(empty)
    assert facts["positives"] == sum(row[0] == "1" for row in whole)


def test_the_best_map_is_that_of_a_ranking_by_appeal() -> None:
    settings = config(malformed_share=0)
    world = draw_world(settings, DAY)
    kind = kind_of(settings)
    drawn = draw_displays(world, np.random.default_rng(1), 2000, (0.0, 1.0))
    counts = summarise(drawn, column_texts(world, drawn, 0, 0), np.full(len(drawn.clicked), WHOLE))
    reciprocal = []
    for display in range(2000):
        rows = drawn.display == display
        clicked = drawn.appeal[rows][drawn.clicked[rows] == 1][0]
        reciprocal.append(1 / (1 + (drawn.appeal[rows] > clicked).sum()))
    facts = kind.facts(settings, DAY, counts)
    assert facts["best_map_at_12"] == pytest.approx(np.mean(reciprocal), abs=1e-12)
    assert facts["best_map_at_12"] > facts["random_map_at_12"] + 0.2
    assert 0.8 < facts["best_auc"] < 0.9


def test_clicks_follow_the_probabilities() -> None:
    _, drawn = displays_of(config())
    np.testing.assert_allclose(np.bincount(drawn.display, drawn.chance), 1.0)
    likely = drawn.chance > 0.5
    for part in (likely, ~likely):
        assert drawn.clicked[part].mean() == pytest.approx(drawn.chance[part].mean(), abs=0.02)


def test_appeal_is_a_function_of_the_written_columns() -> None:
    world, drawn = displays_of(config())
    seen: dict[tuple[int, ...], float] = {}
    repeated = 0
    columns = (world.users.platform[drawn.user], world.users.country[drawn.user], drawn.document, drawn.ad)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    for key, appeal in zip(keys, drawn.appeal, strict=True):
        repeated += key in seen
        assert seen.setdefault(key, appeal) == appeal
    assert repeated > 100


def test_likeness_is_the_cosine_of_sets() -> None:
    left = np.array([[1, 2, -1], [4, -1, -1], [1, 2, 3]])
    right = np.array([[2, 3, -1], [5, 6, -1], [3, 2, 1]])
    np.testing.assert_allclose(likeness(left, right), [0.5, 0.0, 1.0])


def test_too_few_ads_for_a_display_are_refused() -> None:
    with pytest.raises(ValidationError, match="items=50"):
        config(items=50)
