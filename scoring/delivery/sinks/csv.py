"""The CSV sink: writes lists for spreadsheets and e-mail tools, and publishes the files with a manifest."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from typing import IO, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from conf.errors import ConfigError
from etl.latest.item_titles import IMAGE, TITLE
from scoring.delivery.file_sink import (
    Files,
    FileSinkSettings,
    ListRecord,
    erase_records,
    folders_of,
    publish_files,
)
from scoring.delivery.published_lists import (
    Delivered,
    Erased,
    EraseRequest,
    LakeTable,
    PublishedLists,
    RawUsers,
)
from scoring.requests import VARIANT
from spark.rows import Batches, Rows, arrow_schema, map_rows, query, quoted, records
from storage import file_io
from storage.feature_spec import USER_KEY
from storage.file_digests import new_file
from storage.publish import map_files, own_path

IN_PROCESS = True
places = folders_of

_ENDINGS = {"none": ".csv", "gzip": ".csv.gz"}
_MARK = "\ufeff"
_ORDER = ("user_id", "position")
_NAMES = pa.schema([("name", pa.string())])
# The names of columns that show one item of a list, such as item_1.
_OF_ITEM = re.compile(rf"(item|{TITLE}|{IMAGE})_.*")
_ROWS_AT_ONCE = 10_000
_LINES_AT_ONCE = 10_000


class Settings(FileSinkSettings):
    """CSV files (RFC 4180) in UTF-8, for spreadsheets, e-mail tools and other tools that read tables.

    A manifest lists the published files, as in tables of the lake. The manifest of a date is in the folder
    `path`/dt=…. The files themselves are in a folder `_data` next to the last folder of `path`.
    """

    layout: Literal["places", "users"] = Field(
        default="places",
        description="Content of a line. `places`: one entry of a list: a user, a position, an item, its "
        "title (`items.title`), its score and its reason. `users`: the whole list of a user, with the "
        "items and titles in the columns item_1, title_1, item_2, title_2, …; fields behind the end of a "
        "short list are empty.",
    )
    user_columns: list[str] = Field(
        default=[],
        description="Columns of the section `users` that follow the id of the user in each line, such as "
        "[email]. That section must declare the type string for them. They are read from the table of users "
        "when the lists are delivered; unless `features` names them, the lake and models do not contain "
        "them. A user without a value has an empty field.",
    )
    compression: Literal["none", "gzip"] = Field(
        default="none", description="Compression of the files. `none`: plain text. `gzip`: gzip files."
    )
    byte_order_mark: bool = Field(
        default=False,
        description="Whether each file begins with a byte order mark. Excel recognises UTF-8 by this mark "
        "if a user opens the file with a double click. Many other tools do not expect the mark.",
    )

    @field_validator("user_columns")
    @classmethod
    def _free_names(cls, names: list[str]) -> list[str]:
        reserved = {"user_id", VARIANT, "position", "item_id", TITLE, IMAGE, "score", "reason"}
        wrong = [name for name in names if name in reserved or _OF_ITEM.fullmatch(name)]
        if wrong or len(set(names)) < len(names):
            raise ValueError(
                f"{wrong or names}: the columns of a line must have different names; write other names in "
                "`users.columns`, with the names in the files as `source`, and list each name once"
            )
        return names


def deliver(sink: Settings, lists: PublishedLists) -> Delivered:
    """Publishes the lists of a date in the folder `<path>/dt=<date>`, as `publish_files` does.

    Each file begins with a line of column names. The other lines are sorted by user and position. If the
    files are read in the order of the manifest, all lines have this order.

    Args:
        sink: the keys of the sink in `deliver.sinks`.
        lists: the published lists of the date.

    Raises:
        ConfigError: the sink names columns of users, but the configuration has no table of users.
        DataError: the configuration names titles of items, but the run has none.
        InfrastructureError: the files do not have exactly one line per entry or per user.
    """
    names: list[str] = []
    titles = lists.open_titles() if lists.open_titles else None
    users = _users_of(sink, lists)
    files = Files(
        write=lambda folder: names.extend(_write(sink, lists, titles, users, folder)),
        count=partial(_count, lists, names),
        ending=_ENDINGS[sink.compression],
        records=lists.users if sink.layout == "users" else lists.manifest.rows,
        layout=f"{sink.layout}, {sink.compression}, {sink.users_per_file} users a file, "
        f"{'with' if sink.byte_order_mark else 'without'} a byte order mark"
        + (f", titles {titles.manifest.digest}" if titles else "")
        + (f", {', '.join(sink.user_columns)} of users {users.digest}" if users else ""),
        schema=(("line", "csv"),),
        facts={"users": lists.users, "entries": lists.manifest.rows, "layout": sink.layout},
    )
    partition = publish_files(sink.name, sink.path, lists, files)
    return Delivered(partition.path, lists.manifest.rows)


def erase(sink: Settings, request: EraseRequest) -> Erased:
    """Removes the lines of users from all files, and immediately deletes files that no manifest names."""
    return Erased(sink.path, erase_records(sink.name, sink.path, request, parse_csv))


def parse_csv(content: bytes) -> tuple[bytes, list[ListRecord]]:
    """Returns the header of a file with its byte order mark, and the other lines as records."""
    header, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
    items = [index for index, name in enumerate(header) if name.startswith("item_")]
    lines = [
        ListRecord(row[0], sum(row[index] != "" for index in items), _text([row]).encode()) for row in rows
    ]
    return _text([header]).encode(), lines


@dataclass(frozen=True)
class CsvWriter:
    """Writes files of lists. Spark pickles this object.

    Attributes:
        folder: the folder of the files.
        ending: the ending of the names of the files.
        layout: see Settings.
        k: the largest number of items of a list.
        user_columns: the columns after the id of a user.
        variants: whether the rows have the column `variant` of an experiment.
        shown: the columns after the id of an item: `title`, `image`, both or none.
        mark: whether files begin with a byte order mark.
    """

    folder: str
    ending: str
    layout: Literal["places", "users"]
    k: int
    user_columns: tuple[str, ...]
    variants: bool
    shown: tuple[str, ...]
    mark: bool

    @property
    def header(self) -> list[str]:
        """Returns the names of the columns of each file."""
        of_user = ["user_id", *self.user_columns, *([VARIANT] if self.variants else [])]
        if self.layout == "places":
            return [*of_user, *self._fields]
        places = range(1, self.k + 1)
        return [
            *of_user,
            *(f"{name}_{place}" for place in places for name in ("item", *self.shown)),
        ]

    @property
    def _fields(self) -> list[str]:
        """Returns the names of the columns of a list entry, without those of its user."""
        return ["position", "item_id", *self.shown, "score", "reason"]

    def lines(self, batches: Batches) -> Iterator[list[str]]:
        """Yields the fields of each line.

        Args:
            batches: entries of lists, sorted by user and position.
        """
        if self.layout == "places":
            for user, entry in self._entries(batches):
                yield [*user, *entry]
            return
        width, of_item = len(self.header), slice(1, 2 + len(self.shown))
        for user, group in groupby(self._entries(batches), key=lambda pair: pair[0]):
            fields = [*user, *(field for _, entry in group for field in entry[of_item])]
            yield fields + [""] * (width - len(fields))

    def _entries(self, batches: Batches) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Yields a pair for each entry: the fields of its user (and its variant), and its other fields."""
        of_user = ["user_id", *map(_column_of_user, range(len(self.user_columns)))]
        of_user += [VARIANT] if self.variants else []
        for batch in batches:
            users = zip(*(batch.column(name).to_pylist() for name in of_user), strict=True)
            # The text of a float32 is shorter than that of the same number as a float64.
            texts = {"score": [str(score) for score in batch.column("score").to_numpy(zero_copy_only=False)]}
            texts["position"] = [str(position) for position in batch.column("position").to_pylist()]
            fields = (texts.get(name) or batch.column(name).to_pylist() for name in self._fields)
            yield from zip(users, zip(*fields, strict=True), strict=True)

    def write(self, name: str, batches: Batches) -> None:
        """Writes a file with the lines of the entries in `batches`."""
        with _new_text(f"{self.folder}/{name}") as write:
            write((_MARK if self.mark else "") + _text([self.header]))
            lines = self.lines(batches)
            while some := list(islice(lines, _LINES_AT_ONCE)):
                write(_text(some))

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Writes a file with the entries of a Spark partition, and yields its name."""
        from pyspark import TaskContext

        context, filled = TaskContext.get(), (batch for batch in batches if len(batch))
        first = next(filled, None)
        if first is None or context is None:
            return
        name = f"{own_path(f'part-{context.partitionId():05d}.csv')}{self.ending.removeprefix('.csv')}"
        self.write(name, chain([first], filled))
        yield pa.RecordBatch.from_arrays([pa.array([name])], schema=_NAMES)


def _text(rows: Iterable[Sequence[str]]) -> str:
    """Returns lines of CSV. A field is in quotes if it has a comma, a quote or an end of line."""
    buffer = io.StringIO(newline="")
    # The ends of lines are CR LF (RFC 4180). With LF alone, csv would leave a CR in a field without quotes.
    csv.writer(buffer, lineterminator="\r\n").writerows(rows)
    return buffer.getvalue()


@contextmanager
def _new_text(path: str) -> Iterator[Callable[[str], object]]:
    """Creates a file, and returns a function that writes text to it. Equal text gives equal bytes."""
    with new_file(path) as file:
        if not path.endswith(".gz"):
            yield lambda text: file.sink.write(text.encode())
            return
        with gzip.GzipFile("", "wb", fileobj=cast(IO[bytes], file.sink), mtime=0) as compressed:
            yield lambda text: compressed.write(text.encode())


def with_titles(rows: Rows, titles: LakeTable) -> Rows:
    """Adds the columns of a table of titles to entries of lists.

    An item without a title has its id as the title. The address of a missing picture is an empty string.
    """
    fallbacks = {TITLE: "lists.item_id", IMAGE: "''"}
    columns = ", ".join(f"coalesce(titles.{name}, {fallbacks[name]}) AS {name}" for name in _shown(titles))
    return query(
        f"SELECT lists.*, {columns} FROM {{lists}} AS lists "
        f"LEFT JOIN {{titles}} AS titles ON lists.item_id = titles.{titles.key}",
        lists=rows,
        titles=titles.read(),
    )


def _users_of(sink: Settings, lists: PublishedLists) -> RawUsers | None:
    """Opens the raw table of users if the settings of the sink name columns of this table."""
    if not sink.user_columns:
        return None
    if lists.open_users is None:
        raise ConfigError(
            f"the sink {sink.name} has user_columns={sink.user_columns}, but the configuration has no table "
            "of users",
            "add the section `users`, or remove user_columns",
        )
    return lists.open_users()


def _column_of_user(number: int) -> str:
    """Returns the name that a column of users gets when it is joined to the columns of the lists."""
    return f"user_column_{number}"


def with_user_columns(rows: Rows, users: RawUsers, names: Sequence[str]) -> Rows:
    """Adds columns of the table of users to entries of lists; a missing value is an empty string."""
    columns = ", ".join(
        f"coalesce(users.{quoted(name)}, '') AS {_column_of_user(number)}"
        for number, name in enumerate(names)
    )
    return query(
        f"SELECT lists.*, {columns} FROM {{lists}} AS lists "
        f"LEFT JOIN {{users}} AS users ON lists.user_id = users.{USER_KEY}",
        lists=rows,
        users=users.read(names),
    )


def _shown(titles: LakeTable | None) -> tuple[str, ...]:
    """Returns the names of the columns after the id of an item: `title`, `image`, both or none."""
    return tuple(name for name, _ in titles.manifest.schema if name != titles.key) if titles else ()


def _write(
    sink: Settings, lists: PublishedLists, titles: LakeTable | None, users: RawUsers | None, folder: str
) -> list[str]:
    """Writes the files, and returns their names. Without lists, one file has only the names of columns."""
    writer = CsvWriter(
        folder,
        _ENDINGS[sink.compression],
        sink.layout,
        int(lists.manifest.facts["k"]),
        tuple(sink.user_columns),
        VARIANT in dict(lists.manifest.schema),
        _shown(titles),
        sink.byte_order_mark,
    )
    number = max(1, -(-lists.users // sink.users_per_file))
    rows = with_titles(lists.rows, titles) if titles else lists.rows
    rows = with_user_columns(rows, users, sink.user_columns) if users else rows
    if isinstance(rows, pa.Table):
        return _write_table(writer, rows, number)
    placed = rows.repartitionByRange(number, "user_id") if number > 1 else rows.repartition(1)
    names = [row["name"] for row in records(map_rows(placed.sortWithinPartitions(*_ORDER), writer, _NAMES))]
    return names or _write_table(writer, arrow_schema(rows).empty_table(), 1)


def _write_table(writer: CsvWriter, rows: pa.Table, number: int) -> list[str]:
    """Writes `number` files with about equal numbers of users in this process, and returns their names."""
    ordered = rows.sort_by([(name, "ascending") for name in _ORDER])
    users = ordered["user_id"].combine_chunks()
    is_first = np.ones(len(users), bool)
    is_first[1:] = pc.not_equal(users[1:], users[:-1]).to_numpy(zero_copy_only=False)
    starts = [*np.flatnonzero(is_first).tolist(), len(users)]  # index of each user's first entry, and the end
    of_lists = len(starts) - 1
    names = [f"part-{index:05d}{writer.ending}" for index in range(number)]
    for index, name in enumerate(names):
        first, last = (starts[of_lists * end // number] for end in (index, index + 1))
        writer.write(name, ordered.slice(first, last - first).to_batches(max_chunksize=_ROWS_AT_ONCE))
    return names


def _count(lists: PublishedLists, names: Sequence[str], folder: str) -> dict[str, int]:
    """Returns the number of lines of each written file, without the names of columns."""
    spark = None if isinstance(lists.rows, pa.Table) else lists.frame.sparkSession
    counts = map_files(spark, _count_file, [f"{folder}/{name}" for name in names])
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _count_file(path: str) -> str:
    files, inner = file_io.filesystem(path)
    compression = "gzip" if path.endswith(".gz") else None
    with files.open_input_stream(inner, compression=compression) as stream:
        rows = csv.reader(io.TextIOWrapper(stream, encoding="utf-8", newline=""))
        return str(sum(1 for _ in rows) - 1)
