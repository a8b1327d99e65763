"""SIGKILL before and after each step of publishing, while a reader reads; then a rerun."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from storage.manifest import current_manifest
from tests.processes import fork_server
from tests.storage.dying_publisher import (
    Death,
    partition_of,
    publish_generation,
    read_generation,
    read_listed,
    read_until_told,
)

pytestmark = pytest.mark.processes

# In the order publish() takes the steps, and whether the new partition is published at that instant.
STEPS = [
    ("pyarrow.parquet", "write_table", 2, False, False),
    ("storage.publish", "write_files", 1, False, False),
    ("storage.publish", "verify", 1, False, False),
    ("storage.publish", "read_manifest", 1, False, False),
    ("os", "fsync", 2, False, False),
    ("storage.file_io", "make_durable", 1, False, False),
    ("storage.publish", "replace_manifest", 1, False, True),
    ("os", "replace", 1, False, True),
    ("storage.other_tools", "show_links", 1, True, True),
    ("storage.other_tools", "_exchange", 1, True, True),
    ("storage.other_tools", "_remove", 1, True, True),
    ("storage.other_tools", "_remove", 2, True, True),
    ("storage.other_tools", "_link", 1, True, True),
    ("os", "link", 1, True, True),
    ("os", "link", 2, True, True),
    ("os", "link", 3, True, True),
    ("storage.publish", "delete_leftovers", 1, True, True),
]
DEATHS = [
    (Death(module, function, after, call), new_after if after else new_before)
    for module, function, call, new_before, new_after in STEPS
    for after in (False, True)
]


@pytest.fixture
def context() -> Iterator[BaseContext]:
    with fork_server("tests.storage.dying_publisher") as started:
        yield started


def test_readers_see_the_old_partition_or_the_new_whatever_the_instant(
    context: BaseContext, tmp_path: Path
) -> None:
    root = str(tmp_path)

    def run(generation: int, death: Death | None) -> int | None:
        process = context.Process(target=publish_generation, args=(root, generation, death))
        process.start()
        process.join(60)
        return process.exitcode

    assert run(0, None) == 0
    ours, theirs = context.Pipe()
    reader = context.Process(target=read_until_told, args=(root, theirs))
    reader.start()
    assert ours.poll(60), "the reader did not start"
    assert ours.recv() == "reading"

    for generation, (death, is_new) in enumerate(DEATHS, start=1):
        assert run(generation, death) == -signal.SIGKILL, f"nothing died {death}"
        assert read_generation(root) == (generation if is_new else generation - 1), death
        assert read_listed(root) in (generation - 1, generation if is_new else None, None), death
        manifest = current_manifest(partition_of(root), {"generation": str(generation)})
        if is_new:
            assert manifest is not None
            assert read_listed(root) == generation, f"what readers see was not mended after {death}"
        assert run(generation, None) == 0
        assert read_generation(root) == read_listed(root) == generation

    ours.send("stop")
    seen = ours.recv()
    reader.join(60)
    assert isinstance(seen, list), seen
    assert seen == sorted(set(seen)), "a reader went back to an older partition"
    assert seen[-1] == len(DEATHS)
