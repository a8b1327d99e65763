from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from etl.native import library
from metrics import bootstrap
from setup import build_native
from setup.console import SetupError
from training.native import library as training_library

pytestmark = pytest.mark.processes


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder in (tmp_path / "checkout" / name for name in build_native.LIBRARIES):
        folder.mkdir(parents=True)
        (folder / "one.h").write_text("inline int one() { return 1; }\n")
        (folder / "one.cpp").write_text(
            '#include "one.h"\nextern "C" __attribute__((visibility("default"))) int f() { return one(); }\n'
        )
    return tmp_path / "checkout"


def test_it_is_compiled_once_for_its_sources_and_put_into_the_environment(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "venv"
    built = build_native.build(checkout, venv)
    looked_for = [module.LIBRARY for module in (library, training_library, bootstrap)]
    assert built == [venv / path for path in looked_for]
    for path in built:
        assert ctypes.CDLL(str(path)).f() == 1
        path.unlink()
    monkeypatch.setenv("CXX", "no-such-compiler")
    build_native.build(checkout, venv)  # from the cache
    (checkout / "etl/native/one.h").write_text("inline int one() { return 2; }\n")
    with pytest.raises(SetupError, match=r"no-such-compiler cannot be run[\s\S]*apt-get install g\+\+"):
        build_native.build(checkout, venv)


def test_what_does_not_compile_is_told_with_the_compilers_words(checkout: Path, tmp_path: Path) -> None:
    (checkout / "etl/native/one.h").write_text("inline int one() { return x; }\n")
    with pytest.raises(SetupError, match=r"does not compile[\s\S]*x.* was not declared"):
        build_native.build(checkout, tmp_path / "venv")
    assert not (tmp_path / "venv" / library.LIBRARY).exists()


def test_a_missing_library_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library._open.cache_clear()
    monkeypatch.setattr(library.sys, "prefix", str(tmp_path))
    try:
        assert not library.is_built()
        with pytest.raises(Exception, match="make setup"):
            library.library()
    finally:
        library._open.cache_clear()
