"""The doctor checks a lake on an object store."""

from __future__ import annotations

import pytest

from setup.doctor.lake import lake
from storage import file_io
from tests.etl.lakes.conftest import ObjectStore


def test_a_bucket_can_hold_a_lake(object_store: ObjectStore) -> None:
    findings = list(lake(f"{object_store.root}/of_doctor"))
    assert [finding.fine for finding in findings] == [True]
    assert file_io.list_files(f"{object_store.root}/of_doctor", recursive=True) == []


def test_a_bucket_that_does_not_exist(object_store: ObjectStore) -> None:
    [finding] = lake("s3a://no-such-bucket-of-ours/lake")
    assert not finding.fine
    assert "no-such-bucket-of-ours" in finding.text


def test_a_server_that_does_not_answer(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    [finding] = lake("s3a://bucket-of-nobody/lake")
    assert not finding.fine
