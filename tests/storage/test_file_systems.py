"""Which file system a path has, and which path within it."""

from __future__ import annotations

import pytest

from storage.file_io import filesystem


@pytest.mark.parametrize(
    "path, inner",
    [
        ("hdfs:///raw/clicks/", "/raw/clicks"),
        ("hdfs://node:8020/raw//", "node:8020/raw"),
        ("s3a://bucket/raw/", "bucket/raw"),
        ("s3://bucket/", "bucket"),
        ("file:///raw/clicks/", "/raw/clicks"),
    ],
)
def test_only_slashes_at_the_end_are_left_out(path: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert filesystem(path)[1] == inner
