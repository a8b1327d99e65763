"""SIGKILL of refit_model while it trains, before the model is complete, and before the refit is recorded.

At each of these instants the model that served before serves, and at the end the refit does.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from storage.dataset import read_dataset
from storage.paths import LakePaths
from tests.faults.refit_process import refit_and_die
from tests.processes import fork_server
from tests.training.refit_lake import (
    NAME,
    RUN_DATES,
    config_of,
    publish,
    refit,
    train_and_promote,
    without_spark,
)
from training.checkpoints import load_model
from training.loop.training_plan import make_refit_plan
from training.registry.model_json import is_complete
from training.registry.refits import serving_model

pytestmark = [pytest.mark.timeout(300), pytest.mark.processes]

FIRST, SECOND = RUN_DATES
RECORD = f"refits/dt={SECOND}.json"
IMPORTED_LATER = ("pandas", "training.architectures.dlrm", "training.data.row_groups")
INSTANTS = ("step-000000000010.json", "model.json", RECORD)


@dataclass
class Story:
    """Two runs of a lake; the refit of the second run was killed at each instant, then left in peace.

    Attributes:
        lake: the lake.
        first: the refit of the first run.
        champion: the champion of the second run.
        served: the version that serves on the second run date, after each kill.
        complete: whether the refit's model is complete, after each kill.
        steps: the steps of the checkpoints that exist, after each kill.
        refit: the refit of the second run.
    """

    lake: LakePaths
    first: str
    champion: str
    served: list[str] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)
    refit: str = ""


def serves(lake: LakePaths, run_date: str) -> str:
    serving = serving_model(config_of(lake), lake, run_date)
    assert serving is not None
    return serving.version


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    torch.set_num_threads(1)
    lake = LakePaths(str(tmp_path_factory.mktemp("lake")))
    publish(lake)
    config = config_of(lake)
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch)
        train_and_promote(config, FIRST)
        first = str(refit(config, FIRST).facts["version"])
        story = Story(lake, first, train_and_promote(config, SECOND))
        plan = make_refit_plan(config, lake, read_dataset(lake, SECOND), story.champion)
        with fork_server("tests.faults.refit_process", *IMPORTED_LATER) as server:
            for instant in INSTANTS:
                process = server.Process(target=refit_and_die, args=(lake.root, SECOND, instant))
                process.start()
                process.join(240)
                assert process.exitcode == -signal.SIGKILL
                story.served.append(serves(lake, SECOND))
                story.complete.append(is_complete(plan.model_path, checksums=True))
                names = [path.name for path in Path(plan.checkpoint_path).glob("step-*.json")]
                indices = [match for name in names if (match := re.fullmatch(r"step-(\d+)\.json", name))]
                story.steps.append(sorted(int(match[1]) for match in indices))
        story.refit = str(refit(config, SECOND).facts["version"])
    return story


def test_the_job_was_killed_at_three_stages(story: Story) -> None:
    assert story.steps[0] == [5]  # the second checkpoint had no index
    assert story.steps[1][-1] > 5
    assert story.complete == [False, False, True]
    assert not (Path(story.lake.models(NAME)) / RECORD).with_suffix(".tmp").exists()


def test_the_model_that_served_before_serves_until_the_record_is_written(story: Story) -> None:
    assert story.served == [story.champion] * len(INSTANTS)
    assert serves(story.lake, FIRST) == story.first
    assert serves(story.lake, SECOND) == story.refit not in (story.champion, story.first)


def test_the_interrupted_refit_equals_an_undisturbed_one(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, folders = LakePaths(str(tmp_path)), []
    publish(lake)
    without_spark(monkeypatch)
    for run_date in RUN_DATES:
        champion = train_and_promote(config_of(lake), run_date)
    assert champion == story.champion
    refit(config_of(lake), SECOND)
    for one in (story.lake, lake):
        plan = make_refit_plan(config_of(one), one, read_dataset(one, SECOND), champion)
        folders.append(plan.model_path)
    disturbed, peaceful = (load_model(folder, torch.device("cpu")).model.state_dict() for folder in folders)
    for name, weights in peaceful.items():
        torch.testing.assert_close(disturbed[name], weights, rtol=0, atol=1e-6)
