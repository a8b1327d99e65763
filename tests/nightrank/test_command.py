"""The command `nightrank` in a checkout: starts jobs from any folder, and completes words in a real shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path

import pytest

from nightrank import command
from nightrank.command import completion
from setup import job_pages
from setup.install import VENV
from tests.nightrank.conftest import RUN_DATE, World
from tests.processes import ROOT

pytestmark = pytest.mark.processes
NIGHTRANK = VENV / "bin/nightrank"


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NIGHTRANK, *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_help_lists_every_job(tmp_path: Path) -> None:
    shown = run("--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert list(command.commands().values()) == sorted(
        [job.stem for job in job_pages.job_files()] + ["doctor"]
    )
    for name in command.commands():
        assert f"\n  {name} " in shown.stdout
    assert set(command._EVERYDAY) <= set(command.commands())


def test_a_job_runs_from_another_folder(world: World, tmp_path: Path) -> None:
    user = world.lake.recommendations().arrow(["user_id"]).column(0)[0].as_py()
    done = run("show", "--config", str(world.config), "--date", RUN_DATE, "--user", user, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert user in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["job"] == "show"


def test_the_demo_and_a_run_find_their_default_files(tmp_path: Path) -> None:
    done = run("demo", "--nights", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--nights 0 is less than 1" in done.stderr
    config = shutil.copy(ROOT / "conf/datasets/generated.yaml", tmp_path / "g.yaml")
    model = f"model={json.dumps({'architecture': 'dlrm'})}"
    done = run(
        "run", "--config", str(config), "--run-date", "never", "--set", model, "--isolate", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "'never' is not a date" in done.stderr


def test_usage_names_the_command(tmp_path: Path) -> None:
    for words in (["run"], ["doctor", "--profiles"]):
        done = run(*words, "--unknown-option", cwd=tmp_path)
        assert done.returncode == 2
        assert f"nightrank {words[0]}: error: " in done.stderr


@pytest.mark.parametrize("name", ["migrate", "demo"])
def test_usage_of_a_job_names_the_command_that_started_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, with what the command leaves to the script of the job."""

    def start(_: str, words: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", words[-2:])
        sys.exit(import_module(f"jobs.{name}").main())

    monkeypatch.setattr(os, "execv", start)
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--unknown-option"])
    assert sys.argv == [f"{command.find_project()}/jobs/{name}.py", "--unknown-option"]
    assert ended.value.code == 2
    assert f"nightrank {name}: error: " in capsys.readouterr().err


def test_wrong_words_end_with_usage(tmp_path: Path) -> None:
    for words in (["dema"], [], ["completion", "tcsh"]):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert "usage: nightrank" in done.stderr
    named = run("dema", cwd=tmp_path).stderr
    assert "there is no command 'dema': did you mean 'demo'?" in named
    assert "'demo'" in named


def test_setup_in_a_checkout_refers_to_make(tmp_path: Path) -> None:
    done = run("setup", cwd=tmp_path)
    assert done.returncode == 2
    assert "run `make setup`" in done.stderr


@pytest.mark.parametrize(
    "words, expected",
    [
        (["nightrank", "ch"], {"champion", "check", "check_lists", "check_quality"}),
        (["nightrank", "run", "--re"], {"--retrain"}),
        (["nightrank", "champion", "--p"], {"--pin"}),
        (["nightrank", "completion", ""], {"bash", "zsh"}),
        (["nightrank", "nothing", "--"], set()),
    ],
)
def test_bash_completes(words: list[str], expected: set[str]) -> None:
    script = run("completion", "bash", cwd=ROOT).stdout
    line = " ".join(f"'{word}'" for word in words)
    code = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _nightrank; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == expected
    assert done.stderr == ""


def test_zsh_runs_the_script_for_bash() -> None:
    assert completion("zsh", command.options()).endswith(completion("bash", command.options()))
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n", "-c", completion("zsh", command.options())], check=True)


def test_a_newer_release_keeps_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def archive(names: list[str]) -> None:
        with tarfile.open(tmp_path / "project.tar", "w") as packed:
            for name in names:
                packed.add(__file__, name)

    monkeypatch.setattr(command, "_ARCHIVE", tmp_path / "project.tar")
    target = tmp_path / "project"
    archive(["jobs/nightly.py", "old.py"])
    command._unpack(target)
    assert not command._is_ready(target)
    (target / ".venv/bin").mkdir(parents=True)
    (target / ".venv/bin/python").touch()
    assert command._is_ready(target)
    archive(["jobs/nightly.py", "new.py"])
    command._unpack(target)
    assert command._is_ready(target)
    assert (target / "new.py").exists()
    assert not (target / "old.py").exists()
