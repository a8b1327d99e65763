"""A package with which the doctor's check of Horovod ends at once. The check itself: test_doctor.py."""

from __future__ import annotations

from pathlib import Path


def write_horovod(folder: Path) -> None:
    """Writes the package `horovod` into a folder, which a test puts on the path before the real package."""
    (folder / "horovod/torch").mkdir(parents=True)
    (folder / "horovod/__init__.py").touch()
    (folder / "horovod/torch/__init__.py").write_text(
        "def gloo_built() -> bool:\n    return True\n\n\ndef nccl_built() -> bool:\n    return True\n"
    )
