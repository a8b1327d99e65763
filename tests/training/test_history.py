"""Rollbacks and pins: the champion of each date, also for reruns of past dates; a retry adds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import ConfigError, DataError
from storage import file_io
from storage.paths import LakePaths
from training.registry import mlflow_mirror
from training.registry.champion_history import champion_state_as_of, read_overrides
from training.registry.overrides import OverrideRequest, pin, reason_against_promotion, release, roll_back
from training.registry.versions import (
    ChampionDecision,
    champion_as_of,
    model_path,
    record_decision,
)

NAME = "m"


@pytest.fixture
def aliases(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """No MLflow: collects the aliases that would be set."""
    calls: list[dict[str, str]] = []
    monkeypatch.setattr(
        mlflow_mirror, "set_aliases", lambda lake, name, versions: calls.append(dict(versions))
    )
    return calls


@pytest.fixture
def lake(tmp_path: Path, aliases: list[dict[str, str]]) -> LakePaths:
    """v1, v2, v3 and v4 promoted on the 1st, 2nd, 3rd and 4th, each warm-started from the one before."""
    lake = LakePaths(str(tmp_path))
    for day, version in enumerate(("v1aaaa", "v2aaaa", "v3aaaa", "v4aaaa"), 1):
        trained(lake, version, f"v{day - 1}aaaa" if day > 1 else None)
        decide(lake, run_date(day), version)
    aliases.clear()
    return lake


def run_date(day: int) -> str:
    return f"2026-01-{day:02d}"


def trained(lake: LakePaths, version: str, parent: str | None) -> None:
    file_io.replace_json(
        f"{model_path(lake, NAME, version)}/model.json", {"version": version, "parent": parent}
    )


def delete(lake: LakePaths, version: str) -> None:
    Path(f"{model_path(lake, NAME, version)}/model.json").unlink()


def decide(
    lake: LakePaths, run_date: str, challenger: str, *, promoted: bool = True, parent: str | None = None
) -> None:
    before = champion_as_of(lake, NAME, run_date, before=True)
    after = challenger if promoted else before
    lineage = {} if parent is None else {"parent": parent}
    decision = ChampionDecision(challenger, before, promoted, after, "because", lineage=lineage)
    record_decision(lake, NAME, run_date, decision)


def request(day: int, version: str | None = None, why: str = "clicks fell by half") -> OverrideRequest:
    return OverrideRequest(run_date(day), "ada", why, version)


def serving(lake: LakePaths, first: int = 1, last: int = 6) -> str:
    """The numbers of the champions after each run, `-` for none."""
    champions = [champion_as_of(lake, NAME, run_date(day)) for day in range(first, last + 1)]
    return "".join("-" if version is None else version[1] for version in champions)


def test_a_rollback_brings_back_the_champion_before_from_its_date_on(lake: LakePaths) -> None:
    record = roll_back(lake, NAME, request(5))
    assert record is not None
    assert (record.champion, record.withdrawn) == ("v3aaaa", ("v4aaaa",))
    assert serving(lake) == "123433"
    assert champion_as_of(lake, NAME, run_date(5), before=True) == "v3aaaa"  # the parent of run 5
    assert champion_as_of(lake, NAME, run_date(4), before=True) == "v3aaaa"
    assert champion_as_of(lake, NAME, run_date(4)) == "v4aaaa"  # a rerun of run 4 sees what it saw


def test_going_back_further_withdraws_every_champion_since(
    lake: LakePaths, aliases: list[dict[str, str]]
) -> None:
    record = roll_back(lake, NAME, request(5, "v2aa"))
    assert record is not None
    assert (record.champion, record.withdrawn) == ("v2aaaa", ("v3aaaa", "v4aaaa"))
    assert serving(lake) == "123422"
    assert aliases == [{"champion": "v2aaaa"}]


def test_a_rollback_done_again_adds_nothing(lake: LakePaths) -> None:
    roll_back(lake, NAME, request(5))
    files = {path: path.read_bytes() for path in Path(lake.root).rglob("*.json")}
    assert roll_back(lake, NAME, request(5)) is None
    assert roll_back(lake, NAME, request(5, "v3aaaa")) is None
    assert {path: path.read_bytes() for path in Path(lake.root).rglob("*.json")} == files
    further = roll_back(lake, NAME, request(5, "v1aaaa"))  # only a name goes further back
    assert further is not None
    assert further.withdrawn == ("v2aaaa", "v3aaaa")
    assert serving(lake) == "123411"
    assert [override.action for override in read_overrides(lake, NAME, run_date(9))] == [
        "rollback",
        "rollback",
    ]


def test_a_rerun_of_any_date_promotes_no_withdrawn_version_from_the_rollback_on(lake: LakePaths) -> None:
    """Run 4 is repeated and decides as before; run 5 trained from the withdrawn model."""
    roll_back(lake, NAME, request(5))
    trained(lake, "v5aaaa", "v4aaaa")
    trained(lake, "v6aaaa", "v3aaaa")
    decide(lake, run_date(4), "v4aaaa")
    assert serving(lake) == "123433"
    state = champion_state_as_of(lake, NAME, run_date(5), before=True)
    assert str(reason_against_promotion(lake, NAME, "v4aaaa", state)) == (
        "v4aaaa was withdrawn (rollback of 2026-01-05 by ada: clicks fell by half)"
    )
    assert "v5aaaa was trained from v4aaaa, which was withdrawn" in str(
        reason_against_promotion(lake, NAME, "v5aaaa", state)
    )
    assert reason_against_promotion(lake, NAME, "v6aaaa", state) is None
    assert (
        reason_against_promotion(
            lake, NAME, "v4aaaa", champion_state_as_of(lake, NAME, run_date(4), before=True)
        )
        is None
    )
    decide(lake, run_date(6), "v6aaaa")
    assert serving(lake) == "123436"


def test_a_rollback_on_the_day_of_the_promotion_holds_in_that_run(lake: LakePaths) -> None:
    roll_back(lake, NAME, request(4))
    assert serving(lake) == "123333"
    decide(lake, run_date(4), "v4aaaa")
    assert serving(lake) == "123333"


def test_a_pin_serves_whatever_the_gate_says_until_it_is_released(lake: LakePaths) -> None:
    pin(lake, NAME, request(5, "v1aaaa"))
    assert pin(lake, NAME, request(6, "v1aaaa")) is None
    trained(lake, "v5aaaa", "v4aaaa")
    state = champion_state_as_of(lake, NAME, run_date(6), before=True)
    assert "champion v1aaaa is pinned (pin of 2026-01-05 by ada" in str(
        reason_against_promotion(lake, NAME, "v5aaaa", state)
    )
    decide(lake, run_date(6), "v5aaaa", promoted=False)
    released = release(lake, NAME, request(7))
    assert released is not None
    assert release(lake, NAME, request(7)) is None
    decide(lake, run_date(8), "v5aaaa")
    assert serving(lake, last=9) == "123411155"


def test_a_pin_released_within_one_run_leaves_the_decision_to_the_gate(lake: LakePaths) -> None:
    pin(lake, NAME, request(5, "v1aaaa"))
    release(lake, NAME, request(5))
    assert serving(lake) == "123411"
    decide(lake, run_date(5), "v2aaaa")
    assert serving(lake) == "123422"


def test_after_its_release_a_pinned_version_serves_on_although_another_was_promoted_in_that_run(
    lake: LakePaths,
) -> None:
    pin(lake, NAME, request(4, "v1aaaa"))  # the gate had promoted v4 in that run
    release(lake, NAME, request(5))
    assert serving(lake) == "123111"


def test_a_pin_is_not_released_on_the_date_of_a_promotion_that_would_serve_at_once(lake: LakePaths) -> None:
    pin(lake, NAME, request(4, "v1aaaa", "v4 is bad"))  # the gate had promoted v4 in that run
    with pytest.raises(
        DataError,
        match=r"promoted v4aaaa on 2026-01-04, so if the pin of v1aaaa were released [\s\S]* a later --run-date",
    ):
        release(lake, NAME, request(4))
    assert serving(lake) == "123111"
    pin(lake, NAME, request(4, "v4aaaa"))  # the version that the gate promoted
    released = release(lake, NAME, request(4))
    assert released is not None
    assert released.champion == champion_as_of(lake, NAME, run_date(4)) == "v4aaaa"


def test_a_pin_is_released_on_the_date_of_a_promotion_that_was_withdrawn(lake: LakePaths) -> None:
    roll_back(lake, NAME, request(4))
    pin(lake, NAME, request(4, "v1aaaa"))
    released = release(lake, NAME, request(4))
    assert released is not None
    assert serving(lake) == "123111"


def test_a_rollback_leaves_out_champions_whose_files_are_deleted(lake: LakePaths) -> None:
    """`prune` keeps one champion before each that serves, so several rollbacks can reach a deleted model."""
    delete(lake, "v3aaaa")
    first = roll_back(lake, NAME, request(5))
    assert first is not None
    assert (first.champion, first.withdrawn) == ("v2aaaa", ("v3aaaa", "v4aaaa"))
    delete(lake, "v1aaaa")
    for version in (None, "v1aaaa"):
        with pytest.raises(DataError, match=r"v1aaaa.* deleted or damaged[\s\S]*--pin.*: v2aaaa, v4aaaa"):
            roll_back(lake, NAME, request(6, version))
    assert serving(lake) == "123422"


def test_a_pin_after_a_rollback_can_be_rolled_back_on_the_same_date(lake: LakePaths) -> None:
    roll_back(lake, NAME, request(5))
    pin(lake, NAME, request(5, "v4aaaa"))
    again = roll_back(lake, NAME, request(5))
    assert again is not None
    assert serving(lake) == "123433"
    assert roll_back(lake, NAME, request(5)) is None


def test_pinning_a_withdrawn_version_makes_it_count_again(lake: LakePaths) -> None:
    roll_back(lake, NAME, request(5))
    pin(lake, NAME, request(6, "v4aaaa", "it was not the model"))
    assert serving(lake) == "123434"
    assert not champion_state_as_of(lake, NAME, run_date(6)).withdrawn
    roll_back(lake, NAME, request(6, "v2aaaa"))  # ends the pin as well
    assert serving(lake, last=7) == "1234322"


def test_models_trained_from_the_version_that_a_rollback_restores_may_be_promoted(lake: LakePaths) -> None:
    """The pinned v3 is withdrawn, and it is an ancestor of v4, which serves again."""
    pin(lake, NAME, request(5, "v3aaaa"))
    record = roll_back(lake, NAME, request(6, "v4aaaa", "it was not v4"))
    assert record is not None
    assert (record.champion, record.withdrawn) == ("v4aaaa", ("v3aaaa",))
    assert serving(lake, last=7) == "1234344"
    trained(lake, "v5aaaa", "v4aaaa")
    trained(lake, "v6aaaa", "v3aaaa")
    state = champion_state_as_of(lake, NAME, run_date(7), before=True)
    assert reason_against_promotion(lake, NAME, "v5aaaa", state) is None
    assert "v6aaaa was trained from v3aaaa, which" in str(
        reason_against_promotion(lake, NAME, "v6aaaa", state)
    )
    roll_back(lake, NAME, request(8, "v2aaaa"))
    later = champion_state_as_of(lake, NAME, run_date(8), before=True)
    assert "v5aaaa was trained from v4aaaa" in str(reason_against_promotion(lake, NAME, "v5aaaa", later))


def test_no_model_serves_that_was_trained_from_a_version_withdrawn_later(lake: LakePaths) -> None:
    """The rollback of a past date also ends the service of v3 and v4, which were trained from v2."""
    roll_back(lake, NAME, request(2, "v1aaaa", "v2 learned clicks of robots"))
    assert serving(lake) == "111111"
    trained(lake, "v5aaaa", "v1aaaa")
    decide(lake, run_date(5), "v5aaaa")
    assert serving(lake) == "111155"
    pin(lake, NAME, request(6, "v3aaaa"))  # a person may still choose it
    release(lake, NAME, request(7))
    assert serving(lake, last=7) == "1111533"


def test_a_model_stays_out_after_prune_has_deleted_it(lake: LakePaths) -> None:
    """The decision of the gate names the parent, so the deleted model.json is not needed."""
    decide(lake, run_date(3), "v3aaaa", parent="v2aaaa")
    decide(lake, run_date(4), "v4aaaa", parent="v3aaaa")
    roll_back(lake, NAME, request(2, "v1aaaa"))
    for version in ("v2aaaa", "v3aaaa", "v4aaaa"):
        delete(lake, version)
    assert serving(lake) == "111111"


def test_what_cannot_be_done_is_said(lake: LakePaths, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'v9' is none of the champions up to 2026-01-05[\s\S]*v1aaaa, v2aaaa"
    ):
        roll_back(lake, NAME, request(5, "v9"))
    with pytest.raises(DataError, match="'v9aaaa' is none of the complete models"):
        pin(lake, NAME, request(5, "v9aaaa"))
    with pytest.raises(DataError, match="m has no earlier champion that could serve again instead of v1aaaa"):
        roll_back(lake, NAME, request(1))
    with pytest.raises(ConfigError, match=r"a rollback needs a reason[\s\S]*--why"):
        roll_back(lake, NAME, request(5, why=" "))
    with pytest.raises(DataError, match="has no champion on 2026-01-05"):
        roll_back(LakePaths(str(tmp_path / "empty")), NAME, request(5))
    assert serving(lake) == "123444"


def test_a_prefix_must_name_one_version(lake: LakePaths) -> None:
    trained(lake, "v4aabb", None)
    with pytest.raises(DataError, match=r"'v4aa' matches all of \['v4aaaa', 'v4aabb'\]"):
        pin(lake, NAME, request(5, "v4aa"))
    with pytest.raises(DataError, match="'v4a' is none of"):
        pin(lake, NAME, request(5, "v4a"))
