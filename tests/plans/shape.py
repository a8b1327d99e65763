"""The shape of a physical plan: the nodes that move and order rows, without details that differ from run to
run.

The shape keeps every node, the keys of exchanges, sorts, windows, aggregates and joins, and the kind of join.
It leaves out expression ids, the numbers of chains, paths, sizes, computed expressions, and everything below a
frame in memory, which is recorded separately. So the chains of a new operator do not renumber other plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Nodes that move, order or group rows: what they do it by is part of the shape.
_DETAILED = (
    "Exchange",
    "BroadcastExchange",
    "Sort",
    "SortMergeJoin",
    "BroadcastHashJoin",
    "ShuffledHashJoin",
    "BroadcastNestedLoopJoin",
    "CartesianProduct",
    "Window",
    "HashAggregate",
    "ObjectHashAggregate",
    "SortAggregate",
    "Union",
    "Coalesce",
    "TakeOrderedAndProject",
)
_TREE = re.compile(r"^(?P<prefix>[ :+\-]*)(?:\*\(\d+\) |\* )?(?P<text>\S.*)$")
_HIDDEN = re.compile(r"#\d+L?|, \[(?:plan_)?id=#?\d+\]|\[(?:plan_)?id=#?\d+\], |file:[^\s,\]]*")
_BROADCAST_KEY = re.compile(r"(BroadcastExchange \w+)\(.*")
# Prefix of the columns that the chain with this number looks up. Chains of other operators change the number.
_CHAIN = re.compile(r"\b_([qc])\d+_")
_FUNCTIONS = re.compile(r"functions=\[(?P<calls>.*?)\](?:, output=.*)?\)$")


def shape_of(plan: str, expressions: bool = False) -> str:
    """Returns the shape of a plan printed by `executedPlan().toString()`. With `expressions` it keeps
    expressions too.
    """
    lines = [
        f"{prefix}{_HIDDEN.sub('', text) if expressions else _node(text)}" for prefix, text in _nodes(plan)
    ]
    return "\n".join(lines) + "\n"


def _nodes(plan: str) -> Iterator[tuple[str, str]]:
    """Yields the indentation and the text of each node that is not below a frame in memory."""
    in_memory: int | None = None
    for line in plan.splitlines():
        match = _TREE.match(line)
        if match is None:
            continue
        depth, text = len(match["prefix"]), match["text"]
        if in_memory is not None:
            if depth > in_memory:
                continue
            in_memory = None
        if text.startswith("InMemoryTableScan"):
            in_memory = depth
        yield match["prefix"], text


def _node(text: str) -> str:
    name = text.split(" ", 1)[0].split("(", 1)[0]
    if text.startswith(("FileScan", "Scan")):
        return " ".join(re.split(r"[ \[]", text)[:2])
    if name not in _DETAILED:
        return name
    clean = _CHAIN.sub(r"_\1*_", _HIDDEN.sub("", text))
    clean = _BROADCAST_KEY.sub(r"\1", clean)  # the join above names the key
    # An aggregate's calls are expressions; its keys say how rows are grouped.
    return _FUNCTIONS.sub(")", clean).replace(", )", ")")
