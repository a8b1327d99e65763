"""The click probability and its AUC: tastes without main effects, effects of empty fields, exact counting."""

from __future__ import annotations

import numpy as np
import pytest

from etl.synthetic.click_probability import (
    BY_NAME,
    FEATURES,
    INTERACTIONS,
    LEVEL_SLOPES,
    LOG_SLOPES,
    MISSING,
    STEPS,
    GeneratedColumn,
    Interaction,
    auc_of_counts,
    click_steps,
    drifting_normals,
    normals,
    probability_of,
    tastes_of_day,
    uniforms,
)
from tests.etl.synthetic.decoded import average_rank_auc

DAY = 739_000


def _plain_values(rows: int = 1) -> dict[str, np.ndarray]:
    return {column.name: np.full(rows, 3, dtype=np.int64) for column in FEATURES}


def test_auc_of_counts_is_the_rank_sum_with_ties_averaged() -> None:
    rng = np.random.default_rng(0)
    steps = rng.integers(0, 40, 500)
    labels = (rng.random(500) < steps / 60).astype(np.int64)
    counts = np.zeros((2, STEPS), dtype=np.int64)
    np.add.at(counts, (labels, steps), 1)
    assert auc_of_counts(counts) == pytest.approx(average_rank_auc(steps, labels), abs=1e-12)


def test_auc_needs_both_classes() -> None:
    counts = np.zeros((2, STEPS), dtype=np.int64)
    counts[0, 7] = 3
    assert auc_of_counts(counts) is None


@pytest.mark.parametrize("interaction", INTERACTIONS, ids=lambda interaction: interaction.name)
def test_a_taste_has_its_strength_and_no_effect_of_one_side(interaction: Interaction) -> None:
    taste = tastes_of_day(42, DAY)[interaction.name]
    inner = taste[:-1, :-1]
    assert inner.shape == (BY_NAME[interaction.left].levels, BY_NAME[interaction.right].levels)
    assert inner.std() == pytest.approx(interaction.strength)
    np.testing.assert_allclose(inner.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(inner.mean(axis=1), 0.0, atol=1e-12)
    assert np.abs(taste[-1]).min() > 0, "an empty field has an effect of its own"
    assert np.abs(taste[:, -1]).min() > 0


def test_tastes_change_a_little_each_day_and_are_independent_after_months() -> None:
    name = INTERACTIONS[0].name
    today, tomorrow, later = (tastes_of_day(42, DAY + days)[name][:-1, :-1].ravel() for days in (0, 1, 200))
    assert not np.array_equal(today, tomorrow)
    assert np.corrcoef(today, tomorrow)[0, 1] > 0.99
    assert abs(np.corrcoef(today, later)[0, 1]) < 0.3
    np.testing.assert_array_equal(today, tastes_of_day(42, DAY)[name][:-1, :-1].ravel())


@pytest.mark.parametrize("column", FEATURES, ids=lambda column: column.name)
def test_only_the_documented_columns_change_the_probability(column: GeneratedColumn) -> None:
    in_tastes = {side for taste in INTERACTIONS for side in (taste.left, taste.right)}
    effective = in_tastes | {*LEVEL_SLOPES, *LOG_SLOPES}
    tastes = tastes_of_day(42, DAY)
    before = click_steps(tastes, _plain_values())
    others = [MISSING, 0] if column.kind == "category" else [MISSING, 0, 1000]
    after = [click_steps(tastes, {**_plain_values(), column.name: np.array([value])})[0] for value in others]
    assert any(step != before[0] for step in after) == (column.name in effective)


def test_probabilities_rise_with_the_step_and_are_between_0_and_1() -> None:
    probabilities = probability_of(np.arange(STEPS))
    assert probabilities.min() > 0
    assert probabilities.max() < 1
    assert (np.diff(probabilities) > 0).all()


def test_draws_depend_only_on_seed_stream_and_index() -> None:
    index = np.arange(1000)
    together = uniforms(1, "a", index)
    np.testing.assert_array_equal(together[500:], uniforms(1, "a", index[500:]))
    assert not np.array_equal(together, uniforms(2, "a", index))
    assert not np.array_equal(together, uniforms(1, "b", index))


def test_draws_have_their_distributions() -> None:
    index = np.arange(200_000)
    assert uniforms(1, "a", index).mean() == pytest.approx(0.5, abs=0.005)
    drawn = normals(1, "a", index)
    assert drawn.mean() == pytest.approx(0.0, abs=0.01)
    assert drawn.std() == pytest.approx(1.0, abs=0.01)
    for day in (0, 7, 15, 29):
        assert drifting_normals(1, "a", index, day, 30).std() == pytest.approx(1.0, abs=0.01)
