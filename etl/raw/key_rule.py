"""Checks ids of users, items and groups against one rule, with Spark expressions and in Arrow arrays.

A single id that violates the rule could stop the delivery of all recommendation lists: PostgreSQL cannot
store NUL characters, or index entries of more than 2,704 bytes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

MAX_KEY_BYTES = 256  # of UTF-8
RULE = (
    "an id must not contain a control character (U+0000 to U+001F, U+007F to U+009F) "
    f"or have more than {MAX_KEY_BYTES} bytes of UTF-8"
)
_CONTROL = r"[\x00-\x1f\x7f-\x{9f}]"


def reason(column: str) -> str:
    """Returns the reason for rejecting a row if its id in the column `column` violates `RULE`."""
    return f"key:{column}"


def are_bad_keys(texts: pa.StringArray) -> pa.BooleanArray:
    """Returns an array of n booleans that are true for ids that violate `RULE`, and null for null."""
    return pc.or_(
        pc.match_substring_regex(texts, _CONTROL), pc.greater(pc.binary_length(texts), MAX_KEY_BYTES)
    )
