"""SIGKILL of a search in the middle of a trial, before a model is complete, and before a record of pruning.

A rerun repeats the finished trials from the lake, resumes the training that was killed from its checkpoint,
and goes on to the trials of a search that was never killed.
"""

from __future__ import annotations

import logging
import shutil
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from storage.paths import LakePaths
from tests.faults.search_process import config_of, publish, result, search, search_and_die
from tests.processes import fork_server
from training.registry.comparison import Comparison

pytestmark = [pytest.mark.timeout(300), pytest.mark.processes]

# Trials have 20 to 40 steps and checkpoints every fourth step and after a best evaluation.
INSTANTS = (
    (r"checkpoints/.*/step-\d+\.json$", 9),  # within a trial
    (r"model\.json$", 3),
    (r"pruned\.json$", 1),
)


@dataclass
class Story:
    """A search that was killed at each instant, and one that was left in peace.

    Attributes:
        whole: the result of the search that was left in peace.
        all_versions: the versions that it trained.
        killed: the result after the kills.
        finished: the versions that were finished after each kill.
        resumed: the versions with a checkpoint after each kill.
        versions: the versions that the last run trained.
        log: what the last run logged.
    """

    whole: Comparison
    all_versions: list[str]
    killed: Comparison | None = None
    finished: list[set[str]] = field(default_factory=list)
    resumed: list[set[str]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    log: str = ""


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    torch.set_num_threads(1)
    peaceful, folder = tmp_path_factory.mktemp("peaceful"), tmp_path_factory.mktemp("killed")
    publish(peaceful)
    shutil.copytree(peaceful / "lake", folder / "lake")
    _, versions = search(peaceful)
    story = Story(result(peaceful), versions)
    lake = LakePaths(config_of(folder).lake)
    with fork_server("tests.faults.search_process") as server:
        for pattern, number in INSTANTS:
            process = server.Process(target=search_and_die, args=(folder, pattern, number))
            process.start()
            process.join(240)
            assert process.exitcode == -signal.SIGKILL
            models, checkpoints = Path(lake.models("tiny-experiments")), Path(lake.checkpoints(""))
            story.finished.append({file.parent.name for file in models.glob("*/*.json")})
            story.resumed.append({file.parent.name for file in checkpoints.glob("*/step-*[0-9].json")})
    records, logger = _Records(), logging.getLogger("nightrank")
    level = logger.level
    logger.addHandler(records)
    logger.setLevel(logging.INFO)
    _, story.versions = search(folder)
    logger.removeHandler(records)
    logger.setLevel(level)
    story.killed, story.log = result(folder), "\n".join(records.lines)
    return story


def test_the_search_has_complete_and_pruned_trials(story: Story) -> None:
    pruned = [trial for trial in story.whole.experiments if trial.pruned is not None]
    assert pruned
    assert len(story.whole.ranked) >= 5


def test_each_kill_left_a_training_to_resume_and_the_finished_trials(story: Story) -> None:
    for finished, resumed in zip(story.finished, story.resumed, strict=True):
        assert len(resumed - finished) == 1
    assert story.finished[0] < story.finished[1] <= story.finished[2]
    assert 0 < len(story.finished[2]) < len(story.all_versions)


def test_the_rerun_trains_only_what_was_not_finished_and_resumes(story: Story) -> None:
    assert story.versions == [version for version in story.all_versions if version not in story.finished[-1]]
    (killed,) = story.resumed[-1] - story.finished[-1]
    assert story.versions[0] == killed
    assert "resuming after step" in story.log


def test_the_result_is_that_of_a_search_that_was_never_killed(story: Story) -> None:
    def timeless(comparison: Comparison | None) -> Comparison:
        assert comparison is not None
        experiments = [
            replace(one, trainings=[replace(training, seconds=0.0) for training in one.trainings])
            for one in comparison.experiments
        ]
        return replace(comparison, experiments=experiments)

    assert timeless(story.killed) == timeless(story.whole)
