"""The patches of Horovod: how they are applied, the digest of the wheel, and the installed Horovod."""

from __future__ import annotations

import hashlib
import hmac
import random
import shutil
import subprocess
from functools import cache
from pathlib import Path

import horovod
import pytest

from setup import build_horovod, horovod_patches, install
from setup.console import SetupError
from setup.horovod_patches import Change

pytestmark = pytest.mark.processes

PATCH = """Why the greeting changes.

--- a/src/greet.py
+++ b/src/greet.py
@@ -1,4 +1,4 @@
 def greet():
-    return "hello"
+    return "good day"

 # the end
--- /dev/null
+++ b/src/leave.py
@@ -0,0 +1,2 @@
+def leave():
+    return "bye"
"""
SOURCE = 'def greet():\n    return "hello"\n\n# the end\n'
INSTALLED = Path(horovod.__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A patch, and the sources that it was made for."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/greet.py").write_text(SOURCE)
    (tmp_path / "greeting.patch").write_text(PATCH)
    return tmp_path


def test_a_patch_changes_files_and_adds_them(folder: Path) -> None:
    horovod_patches.apply(folder, horovod_patches.read_changes(folder))
    assert (folder / "src/greet.py").read_text() == SOURCE.replace("hello", "good day")
    assert (folder / "src/leave.py").read_text() == 'def leave():\n    return "bye"\n'


@pytest.mark.parametrize(
    "source, message",
    [
        (SOURCE.replace("hello", "good morning"), "0 times"),
        (SOURCE * 2, "2 times"),
        (None, "0 times"),
    ],
)
def test_other_sources_are_refused(folder: Path, source: str | None, message: str) -> None:
    path = folder / "src/greet.py"
    path.unlink() if source is None else path.write_text(source)
    with pytest.raises(SetupError, match=rf"cannot be applied to src/greet.py of this version.*{message}"):
        horovod_patches.apply(folder, horovod_patches.read_changes(folder))


def test_a_file_that_is_there_is_not_replaced(folder: Path) -> None:
    (folder / "src/leave.py").write_text("")
    with pytest.raises(SetupError, match=r"creates src/leave.py, but this version of Horovod already has"):
        horovod_patches.apply(folder, horovod_patches.read_changes(folder))


def test_another_patch_asks_for_another_wheel_and_a_new_set_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requirements = install.ROOT / "requirements/horovod.txt"
    capture = build_horovod.capture
    once = cache(lambda *words: capture([*words]))  # importing torch takes two seconds
    monkeypatch.setattr(build_horovod, "capture", lambda command: once(*command))
    before = build_horovod.inputs_of(install.VENV, requirements)
    changes = horovod_patches.read_changes()
    last = Change(changes[-1].file, changes[-1].old, f"{changes[-1].new} ")
    monkeypatch.setattr(horovod_patches, "read_changes", lambda: [*changes[:-1], last])
    assert build_horovod.inputs_of(install.VENV, requirements).digest() != before.digest()

    shutil.copytree(horovod_patches.FOLDER, tmp_path / "setup/horovod")
    fingerprint = install.fingerprint(tmp_path)
    with (tmp_path / "setup/horovod/torch.patch").open("a") as patch:
        patch.write("more")
    assert install.fingerprint(tmp_path) != fingerprint


def test_each_patch_says_why() -> None:
    for path in horovod_patches.patch_files():
        reason = path.read_text().split("--- ")[0]
        assert len(reason.splitlines()) > 2, path


def test_what_is_installed_is_patched() -> None:
    checked = 0
    for change in horovod_patches.read_changes():
        if change.file.endswith(".py"):
            assert change.new in (INSTALLED / change.file).read_text(), change.file
            checked += 1
    assert checked > 10


CALLER = """
#include "signature.h"
#include <iostream>
int main() {
  std::string key, message;
  while (std::cin >> key >> message) {
    using namespace horovod::common;
    std::cout << ToHex(HmacSha256(FromHex(key.substr(1)), FromHex(message.substr(1)))) << "\\n";
  }
}
"""


def test_the_compiled_signature_is_an_hmac(tmp_path: Path) -> None:
    """Against Python's, for messages of all lengths around a block's and keys shorter and longer than one."""
    (header,) = [change for change in horovod_patches.read_changes() if change.file.endswith("/signature.h")]
    (tmp_path / "signature.h").write_text(header.new)
    (tmp_path / "caller.cc").write_text(CALLER)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
    program = tmp_path / "caller"
    subprocess.run(
        [build_horovod.compiler(), *flags, tmp_path / "caller.cc", "-o", program], check=True, cwd=tmp_path
    )
    draw = random.Random(7)
    cases = [
        (draw.randbytes(draw.choice([1, 32, 63, 64, 65, 200])), draw.randbytes(length))
        for length in [*range(200), 70_000]
    ]
    lines = "\n".join(f"k{key.hex()} m{message.hex()}" for key, message in cases)
    signatures = subprocess.run(
        [program], input=lines, capture_output=True, text=True, check=True
    ).stdout.split()
    assert signatures == [hmac.new(key, message, hashlib.sha256).hexdigest() for key, message in cases]
