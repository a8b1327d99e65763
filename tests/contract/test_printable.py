"""Control characters in data reach no terminal or page: the function, and all code that prints values."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest

from conf.errors import DataError, raised_in
from conf.messages import PrintableFormatter, counted, is_printable, json_line, printable, printable_lines
from reporting.elements.markup import table, tag
from reporting.facts.run_facts import UserHistory
from reporting.inspect.user_list import InspectedList, page
from reporting.terminal import StageProgress, text_table
from storage.feature_spec import Feature, FeatureSpec

EVIL = "u1\x1b[2J\x1b]0;owned\x07\x9b31m\u202edetrevni\r\x00\x7f"
SHOWN = r"u1\x1b[2J\x1b]0;owned\x07\x9b31m\u202edetrevni\r\x00\x7f"
BIDI = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


def test_every_control_character_and_bidirectional_override_is_escaped() -> None:
    for code in range(0x110000):
        character = chr(code)
        unsafe = (
            unicodedata.category(character) in ("Cc", "Cs") or unicodedata.bidirectional(character) in BIDI
        )
        if unsafe:
            assert not is_printable(character), hex(code)
            assert printable(character).isascii(), hex(code)
            assert printable(character).isprintable(), hex(code)
        elif unicodedata.category(character)[0] in "LNS":
            assert printable(character) == character, hex(code)


def test_escapes_are_pythons_and_other_text_stays() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("a b–ü漢\\n\U0001f600") == "a b–ü漢\\n\U0001f600"
    assert printable("a\nb\tc") == r"a\nb\tc"
    assert printable_lines("a\nb\tc\x1b") == "a\nb    c\\x1b"
    assert printable(3) == "3"


def test_a_json_line_is_printable_and_reads_as_what_was_written() -> None:
    line = json_line({"user": EVIL + "\ud800"})
    assert line.isascii()
    assert is_printable(line)
    assert json.loads(line) == {"user": EVIL + "\ud800"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line(float("nan"))


def test_an_errors_text_is_printable_also_when_a_worker_raised_it() -> None:
    error = DataError(f"/data/{EVIL}.csv: first", f"deliver {EVIL}\nagain")
    text = str(error)
    assert text == f"/data/{SHOWN}.csv: first\n  what to do: deliver {SHOWN}\nagain"
    raised = raised_in(f"conf.errors.DataError: {DataError(EVIL, EVIL)}")
    assert raised is not None
    assert str(raised) == f"{SHOWN}\n  what to do: {SHOWN}"


def test_log_lines_are_printable() -> None:
    record = logging.LogRecord("nightrank", logging.WARNING, "x.py", 1, "no item has %s", (EVIL,), None)
    assert PrintableFormatter("%(name)s: %(message)s").format(record) == f"nightrank: no item has {SHOWN}"


def test_tables_and_progress_lines_are_printable_and_aligned() -> None:
    text = text_table(["User", "n"], [[EVIL, "1"], ["a\nb", "10"]], right=(1,))
    assert is_printable(text.replace("\n", ""))
    lines = text.split("\n")
    assert len(lines) == 4
    assert len({len(line) for line in lines[1:]}) == 1
    stream = io.StringIO()
    progress = StageProgress(stream)
    progress.write(f"Lists of {EVIL}\nnext")
    progress.finished("score_daily", "done", 1.0, f"to {EVIL}")
    logged = stream.getvalue()
    assert logged.startswith(f"Lists of {SHOWN}\nnext\n")
    assert logged.endswith(f"to {SHOWN}\n")


def test_the_report_escapes_markup_and_control_characters() -> None:
    evil = f"<script>alert('1')</script>&\"{EVIL}"
    text = tag("p", evil, title=evil) + table(["item"], [[evil]], evil)
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&amp;&quot;" + SHOWN) == 5
    assert is_printable(text)


def test_the_page_of_a_user_is_printable() -> None:
    spec = FeatureSpec((Feature("C1", "categorical", "int32", "user", 5),), ("row_id",), "w1")
    facts = {"model_version": "m1", "workflow_version": "w1", "scored_at": "now", "k": 1}
    entry = {"position": 1, "item_id": EVIL, "score": 0.5, "reason": f"boost:{EVIL}"}
    features = {"C1": 3}
    answer = InspectedList(
        EVIL, "2026-01-04", facts, spec, [entry], features, {EVIL: features}, UserHistory({EVIL: (1, 2)})
    )
    text = page(answer, {"C1": {3: EVIL}})
    assert is_printable(text.replace("\n", ""))
    assert text.count(SHOWN) == 7
    assert len(text.splitlines()) == 18


def test_a_noun_has_the_number_of_its_count() -> None:
    assert [counted(count, "row") for count in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
    assert [counted(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]
