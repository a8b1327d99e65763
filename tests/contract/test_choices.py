"""Every member of a union and every value of a setting is documented, and has an example that loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field, create_model

from conf.errors import ConfigError
from conf.plugins import SINK
from conf.types import Measure, Strict
from etl.ops import FRAME_OPERATORS, OPERATORS
from jobs.reference import documented_config
from tests.contract.choices import (
    BASE,
    EXAMPLES,
    ROOT,
    Choice,
    Identity,
    choices_of,
    configuration_choices,
    documents,
    explicit_choices,
    load_document,
    undocumented,
    without_example,
)
from training.settings import known_architectures

CHOICES = configuration_choices()
DOCUMENTS = documents((ROOT / EXAMPLES).read_text(encoding="utf-8"))
PAGE = "docs/configuration.md"


class Cat(Strict):
    """A small animal."""

    kind: Literal["cat"] = Field(description="A cat.")


class Dog(Strict):
    kind: Literal["dog"] = Field(description="A dog.")


Animal = Annotated[Cat | Dog, Field(discriminator="kind")]


class Household(Strict):
    """A section with unions in a list and by themselves, and with Literals in several types."""

    guard: Animal = Field(description="An animal.")
    guests: list[Animal] = Field(default=[], description="Other animals.")
    colour: Literal["red", "blue"] = Field(default="red", description="`red`: warm.")
    rooms: int | Literal["auto"] = Field(default="auto", description="Their number.")
    doors: dict[str, tuple[Literal["open", "shut"], ...]] = Field(default={}, description="`open`, `shut`.")


HOUSEHOLD = """# Houses

| key | type | default | description |
|---|---|---|---|
| `colour` | `red`, `blue` | `"red"` | `red`: warm. |
| `rooms` | integer or `auto` | `"auto"` | Their number. |
| `doors` | mapping to list of `open`, `shut` | `{}` | `open`, `shut`. |

## `guard cat`

A small animal.

## `guard dog`

| key | type | default | description |
|---|---|---|---|
| `kind` | `dog` | required | A dog. |
"""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in {choice.page for choice in CHOICES}}


@pytest.fixture(scope="module")
def sections_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[BaseModel]]:
    """Returns the sections of a document, which is loaded once."""
    folder = tmp_path_factory.mktemp("examples")
    return cache(lambda number: load_document(DOCUMENTS[number], folder))


@pytest.fixture(scope="module")
def shown(sections_of: Callable[[int], list[BaseModel]]) -> set[Identity]:
    """The choices that the documents make."""
    return {
        identity
        for number in range(len(DOCUMENTS))
        for section in sections_of(number)
        for identity in explicit_choices(section)
    }


def settings(choices: list[Choice]) -> set[str]:
    return {choice.setting for choice in choices}


def test_every_choice_is_documented(pages: Mapping[str, str]) -> None:
    assert undocumented(CHOICES, pages) == []


def test_every_choice_has_an_example(shown: set[Identity]) -> None:
    assert without_example(CHOICES, shown) == []


@pytest.mark.parametrize("number", range(len(DOCUMENTS)), ids=[str(document)[:80] for document in DOCUMENTS])
def test_an_example_loads(number: int, sections_of: Callable[[int], list[BaseModel]]) -> None:
    assert sections_of(number)


def test_an_example_that_the_loader_refuses_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.loss"):
        load_document({"train": {"loss": "hinge"}}, tmp_path)
    with pytest.raises(ConfigError, match="all_items, which gives no scores"):
        load_document({"score": {"blend": "auto"}}, tmp_path)


def test_the_page_says_what_examples_extend() -> None:
    assert f"`extends: {BASE}`" in (ROOT / EXAMPLES).read_text(encoding="utf-8")


def test_unions_outside_of_the_configuration_are_complete() -> None:
    """Members that are found by name: operators, architectures and sinks of this checkout."""
    members = {(choice.key, choice.value) for choice in CHOICES if choice.is_member}
    assert {value for key, value in members if not key} == {*OPERATORS, *FRAME_OPERATORS}
    assert {value for key, value in members if key == "architecture"} == set(known_architectures())
    assert {value for key, value in members if key == "kind"} == {*SINK.built_in()}


def test_unions_and_literals_of_a_section_are_choices() -> None:
    choices = list(choices_of(Household, "page.md", "Houses", ""))
    assert settings(choices) == {
        *("kind: cat", "kind: dog", "colour: red", "colour: blue", "rooms: auto"),
        *("doors: open", "doors: shut"),
    }
    headings = {choice.heading for choice in choices if choice.is_member}
    assert headings == {"`guard cat`", "`guard dog`", "`guests cat`", "`guests dog`"}


def test_a_member_or_a_value_without_a_description_is_reported() -> None:
    problems = undocumented(choices_of(Household, "page.md", "Houses", ""), {"page.md": HOUSEHOLD})
    blue, dog, rooms = sorted(problems)
    assert dog.startswith("kind: dog (page.md, `guard dog`): add a docstring")
    assert "class Dog in tests/contract/test_choices.py" in dog
    assert "add `blue` and its meaning" in blue
    assert "field colour of Household in tests/contract/test_choices.py" in blue
    assert rooms.startswith("rooms: auto")


def test_a_choice_that_only_a_default_makes_has_no_example() -> None:
    choices = list(choices_of(Household, "page.md", "Houses", ""))
    household = Household.model_validate(
        {"guard": {"kind": "cat"}, "rooms": 3, "doors": {"front": ("open",)}, "guests": [{"kind": "dog"}]}
    )
    problems = without_example(choices, set(explicit_choices(household)))
    assert [problem.split(" (")[0] for problem in problems] == [
        *("colour: red", "colour: blue", "rooms: auto", "doors: shut")
    ]
    assert all(EXAMPLES in problem for problem in problems)


def test_a_new_source_without_documents_is_reported(pages: Mapping[str, str], shown: set[Identity]) -> None:
    class Newest(Strict):
        """The newest items."""

        source: Literal["newest"] = Field(description="The newest items.")

    candidates: Any = documented_config().model_fields["candidates"].annotation
    (listed,) = get_args(candidates.model_fields["sources"].annotation)
    members: Any = get_args(listed)[0] | Newest
    sources: Any = (list[Annotated[members, Field(discriminator="source")]], ...)
    more = create_model("MoreCandidates", __base__=candidates, sources=sources)
    choices = list(choices_of(more, PAGE, "`candidates`", "candidates"))
    before = undocumented(choices_of(candidates, PAGE, "`candidates`", "candidates"), pages)
    (problem,) = set(undocumented(choices, pages)) - set(before)
    assert problem.startswith("source: newest (docs/configuration.md, `candidates.sources newest`)")
    (problem,) = without_example(choices, shown)
    assert problem.startswith("source: newest")


def test_a_new_value_without_a_description_is_reported(pages: Mapping[str, str]) -> None:
    class MoreMeasure(Measure):
        against: Literal["next_day", "test_split", "next_week"] = "next_day"  # type: ignore[assignment]

    (problem,) = undocumented(choices_of(MoreMeasure, PAGE, "`measure`", "measure"), pages)
    assert problem.startswith("against: next_week (docs/configuration.md, `measure`)")


@pytest.mark.parametrize(
    "page, text, setting",
    [
        (PAGE, "`full_softmax`: ", "loss: full_softmax"),
        (PAGE, "## `candidates.sources ease`", "source: ease"),
        (PAGE, "## `deliver.sinks redis`", "kind: redis"),
        ("docs/models.md", "## `dlrm`", "architecture: dlrm"),
        ("docs/operators/numbers.md", "## clip", "ops: [clip]"),
    ],
)
def test_a_page_that_loses_a_choice_fails(
    pages: Mapping[str, str], page: str, text: str, setting: str
) -> None:
    shortened = {**pages, page: pages[page].replace(text, "")}
    problems = undocumented(CHOICES, shortened)
    assert any(problem.startswith(f"{setting} (") for problem in problems)
