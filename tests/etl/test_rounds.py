"""The plan of a fit, without Spark: every step is fitted once, after its inputs, by a suitable source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError
from etl.fit.rounds import Round, is_countable, plan_rounds
from etl.ops import Step, Type, operator_from_config
from etl.workflow.chains import Chain

MANY = settings(max_examples=50, deadline=None, derandomize=True, database=None)
OPERATORS: list[str | dict[str, Any]] = [
    "fill_median",
    "normalize",
    "normalize_min_max",
    "winsorize",
    "log1p",
    "data_stats",
    "drop_low_cardinality",
    "categorify",
    {"clip": {"min": 0}},
    {"rename": {"suffix": "_new"}},
    {"hash_bucket": {"buckets": 7}},
    {"target_encoding": {"folds": 2}},
    {"join_groupby": {"statistics": ["count"]}},
]


def _chain(columns: dict[str, Type], entries: Sequence[Any]) -> Chain:
    """A chain of the operators that fit the types before them; a second categorify is left out."""
    current = dict(columns)
    steps: list[Step] = []
    for entry in entries:
        operator = operator_from_config(entry)
        if operator.needs == "counts" and any(step.operator.needs == "counts" for step in steps):
            continue
        try:
            bound = operator.bind(current)
        except ConfigError:
            continue
        steps += bound
        current = {name: kind for step in bound for name, kind in step.types.items()}
    return Chain(tuple(columns), tuple(columns.values()), "dense", tuple(steps), tuple(current))


COLUMNS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["int", "float", "string"]), min_size=1, max_size=2
)
CHAINS = st.lists(
    st.builds(_chain, COLUMNS, st.lists(st.sampled_from(OPERATORS), max_size=6)), min_size=1, max_size=6
)


def _measured(rounds: Sequence[Round]) -> list[Round]:
    return [planned for planned in rounds if planned.measured]


@MANY
@given(chains=CHAINS, extends=st.booleans(), has_value_counts=st.booleans())
def test_every_step_is_fitted_once_and_after_its_inputs(
    chains: list[Chain], extends: bool, has_value_counts: bool
) -> None:
    fitted = [0] * len(chains)
    values = [set(chain.inputs) for chain in chains]
    for planned in plan_rounds(chains, extends=extends, has_value_counts=has_value_counts):
        for group in planned.ready:
            assert group.first == fitted[group.chain]
            for step in group.steps:
                assert set(step.inputs) <= values[group.chain]
                values[group.chain] |= set(step.outputs)
            fitted[group.chain] += len(group.steps)
        for group in planned.measured:
            assert group.first == fitted[group.chain]
            for step in group.steps:
                assert set(step.inputs) <= values[group.chain], "inputs are fitted before the round measures"
                others = [other for other in group.steps if other is not step]
                assert not any(set(other.outputs) & set(step.inputs) for other in others)
            values[group.chain] |= {name for step in group.steps for name in step.outputs}
            fitted[group.chain] += len(group.steps)
        for group in (*planned.ready, *planned.measured):
            assert group.steps == chains[group.chain].steps[group.first : group.first + len(group.steps)]
    assert fitted == [len(chain.steps) for chain in chains]


@MANY
@given(chains=CHAINS, extends=st.booleans(), has_value_counts=st.booleans())
def test_statistics_come_from_a_source_that_has_them(
    chains: list[Chain], extends: bool, has_value_counts: bool
) -> None:
    rounds = plan_rounds(chains, extends=extends, has_value_counts=has_value_counts)
    for planned in rounds:
        needs = {step.operator.needs for group in planned.ready for step in group.steps}
        assert needs.isdisjoint({"counts"}) if extends else needs <= {"nothing"}
        assert planned.needs.isdisjoint({"nothing"})
        if extends:
            assert planned.needs <= {"counts"}, "all other numbers are the parent's"
    for planned in _measured(rounds):
        countable = all(is_countable(chains[group.chain], group.first) for group in planned.measured)
        if planned.source == "value_counts":
            assert has_value_counts
            assert countable
        else:
            assert not (has_value_counts and countable), (
                "rows are read only where value counts are not enough"
            )


@MANY
@given(chains=CHAINS, extends=st.booleans(), has_value_counts=st.booleans())
def test_all_vocabularies_are_counted_in_one_round(
    chains: list[Chain], extends: bool, has_value_counts: bool
) -> None:
    rounds = plan_rounds(chains, extends=extends, has_value_counts=has_value_counts)
    assert sum("counts" in planned.needs for planned in rounds) <= 1


@MANY
@given(chains=CHAINS, has_value_counts=st.booleans())
def test_more_columns_need_no_more_rounds(chains: list[Chain], has_value_counts: bool) -> None:
    once, twice = (
        [
            (planned.source, planned.needs)
            for planned in plan_rounds(many, extends=False, has_value_counts=has_value_counts)
        ]
        for many in (chains, [*chains, *chains])
    )
    assert once == twice


def _outline(rounds: Sequence[Round]) -> list[tuple[str, list[str]]]:
    """(source, operators that are measured) of each round."""
    return [
        (planned.source, sorted({group.steps[0].operator.name for group in planned.measured}))
        for planned in rounds
    ]


NUMBER = _chain({"a": "int"}, ["fill_median", "normalize"])
NAME = _chain({"b": "string"}, ["categorify", "data_stats"])
ENCODED = _chain({"c": "string"}, [{"target_encoding": {"folds": 2}}, "normalize"])


def test_rounds_of_a_fit_from_rows() -> None:
    assert _outline(plan_rounds([NUMBER, NAME], extends=False, has_value_counts=False)) == [
        ("rows", ["fill_median"]),
        ("rows", ["normalize"]),
        ("rows", ["categorify"]),
        ("rows", ["data_stats"]),
    ]


def test_rounds_of_a_fit_from_value_counts() -> None:
    number = _chain({"a": "int"}, ["normalize"])
    assert _outline(plan_rounds([number, NAME], extends=False, has_value_counts=True)) == [
        ("value_counts", ["categorify", "normalize"]),
        ("rows", ["data_stats"]),
    ]
    assert _outline(plan_rounds([ENCODED, number], extends=False, has_value_counts=True)) == [
        ("rows", ["target_encoding"]),
        ("rows", ["normalize"]),
        ("value_counts", ["normalize"]),
    ]


def test_an_extension_measures_vocabularies_alone() -> None:
    assert _outline(plan_rounds([NUMBER, ENCODED, NAME], extends=True, has_value_counts=False)) == [
        ("rows", ["categorify"]),
        ("rows", []),
    ]


def test_steps_without_statistics_need_one_round() -> None:
    (planned,) = plan_rounds(
        [_chain({"a": "int"}, ["log1p", {"clip": {"min": 0}}])], extends=False, has_value_counts=True
    )
    assert [len(group.steps) for group in planned.ready] == [2]
    assert not planned.measured


def test_no_chain_needs_no_round() -> None:
    assert plan_rounds([], extends=False, has_value_counts=True) == []
