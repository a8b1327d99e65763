"""The public interface reads a lake on an object store: a real server of the S3 protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal, assert_series_equal
from pyarrow.fs import copy_files

import nightrank
from storage import file_io
from tests.etl.lakes import servers
from tests.nightrank.conftest import RUN_DATE, World

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def copied(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A copy of the lake in a bucket."""
    with servers.bucket(tmp_path_factory.mktemp("s3"), "published"):
        uri = "s3a://published/lake"
        store, folder = file_io.filesystem(uri)
        for name in (
            "_data",
            "datasets",
            "recommendations",
            "users",
            "candidate_items",
            "candidates",
            "models",
            "workflow",
        ):
            copy_files(
                str(Path(world.root) / name),
                f"{folder}/{name}",
                destination_filesystem=store,
                use_threads=False,
            )
        yield uri


def test_tables_scores_and_lists_are_those_of_the_local_lake(world: World, copied: str) -> None:
    lake, local = nightrank.open(copied), world.lake
    assert lake.dates() == lake.dates("recommendations") == [RUN_DATE]
    lists = lake.recommendations()
    assert lists.files[0].startswith("s3a://published/lake/_data/")
    assert_frame_equal(lists.pandas(), local.recommendations().pandas())
    rows = world.raw_rows().head(50)
    assert_series_equal(lake.champion().score(rows), local.champion().score(rows))
    users = lists.pandas(["user_id"])["user_id"].unique()[:5]
    model = nightrank.open(copied, config=world.config).champion()
    published = lists.pandas()
    made = model.recommend(users).to_pandas()
    assert_frame_equal(made, published[published["user_id"].isin(users)].reset_index(drop=True)[list(made)])


def test_a_folder_of_the_bucket_that_is_no_lake_is_named(copied: str) -> None:
    with pytest.raises(nightrank.DataError, match="s3a://published/other has no table `datasets`"):
        nightrank.open("s3a://published/other")
