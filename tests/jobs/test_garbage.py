"""Jobs and their workers look for garbage rarely, and never among what they have imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conf.process import _THRESHOLDS
from tests.processes import ROOT, environment

pytestmark = pytest.mark.processes


def python(program: str) -> str:
    """What a program prints."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_job_looks_rarely_from_its_first_import_on() -> None:
    assert python("import jobs, gc; print(gc.get_threshold())") == str(_THRESHOLDS)


def test_only_objects_of_the_first_call_are_ignored() -> None:
    program = """
import gc
from conf.process import ignore_imported

class Thing: ...

def cycle():
    one, two = Thing(), Thing()
    one.other, two.other = two, one

ignore_imported()
ignored = gc.get_freeze_count()
gc.disable()
cycle()
ignore_imported()
print(ignored > 1000, gc.get_freeze_count() <= ignored, gc.collect() > 0)
"""
    assert python(program) == "True True True"


def test_the_server_of_workers_keeps_pythons_thresholds() -> None:
    program = "import gc; before = gc.get_threshold(); import spark.forked_modules; print(before == gc.get_threshold())"
    assert python(program) == "True"
