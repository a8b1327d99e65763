"""The section about coverage: how often items are recommended, and how few items fill most of the lists."""

from __future__ import annotations

from conf.counted import counted
from reporting.elements import numbers
from reporting.elements.markup import Html, figure, grid, lead, missing, section, table, tag
from reporting.facts.list_facts import ItemCounts
from reporting.facts.run_facts import RunFacts
from reporting.html.charts.axis import percent
from reporting.html.charts.line import Series, line_chart

_TOP = 10


def render(run: RunFacts, counts: ItemCounts | None) -> Html:
    """Returns the section: the concentration of the lists, and the items that are recommended most."""
    if run.recommendations is None or counts is None or not counts.rows:
        return section("coverage", "Coverage", missing("How often items are recommended", "score_daily"))
    items = int(run.recommendations.facts["items"])
    ordered = sorted(counts.times.items(), key=lambda item: (-item[1], item[0]))
    curve = _concentration([times for _, times in ordered], items, counts.rows)
    drawn = line_chart(
        "Concentration",
        [Series("lists of this run", curve), Series("every item equally often", [(0.0, 0.0), (1.0, 1.0)])],
        x_label="share of items, most recommended first",
        y_label="share of list entries",
        from_zero=True,
        x_written=percent,
        y_written=percent,
    )
    chart = figure(drawn, "Concentration", "share of all list entries that the most recommended items take.")
    return section(
        "coverage", "Coverage", _lead(items, ordered, counts), grid(chart, _top(ordered, counts.rows))
    )


def _concentration(times: list[int], items: int, rows: int) -> list[tuple[float, float]]:
    """Returns the points of the concentration curve, from (0, 0) to (1, 1).

    The items are ordered by how often they are recommended, the most frequent first. A point says which share
    of the list entries belongs to the first items: x is the share of items, y the share of list entries.
    """
    points, taken = [(0.0, 0.0)], 0
    for position, count in enumerate(times, start=1):
        taken += count
        points.append((position / max(items, len(times)), taken / rows))
    return points if points[-1][0] == 1.0 else [*points, (1.0, 1.0)]


def _lead(items: int, ordered: list[tuple[str, int]], counts: ItemCounts) -> Html:
    """Returns the introductory sentence.

    It says how many items are recommended, and which share of the list entries belongs to the tenth of the
    items that is recommended most.
    """
    tenth = sum(times for _, times in ordered[: max(1, items // 10)]) / counts.rows
    part = ""
    if counts.rows < counts.of_rows:
        part = f" Counted in {numbers.count(counts.rows)} of {counted(counts.of_rows, 'entry', 'entries')}."
    return lead(
        f"{numbers.count(len(ordered))} of {counted(items, 'item')} {'is' if len(ordered) == 1 else 'are'} "
        "recommended to someone; "
        f"the most recommended tenth of the items takes {numbers.percent(tenth)} of all list entries.{part}"
    )


def _top(ordered: list[tuple[str, int]], rows: int) -> Html:
    """Returns a table of the items that are recommended most."""
    most = [
        [tag("code", item), numbers.count(times), numbers.percent(times / rows, 2)]
        for item, times in ordered[:_TOP]
    ]
    return table(["Item", "Lists", "Share of entries"], most, "Most recommended items")
