"""Builds HTML in which text is always escaped: a plain string is text, and only `Html` is markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from conf.printable import printable_lines


class Html(str):
    """HTML markup, which is not escaped again. Text from data never becomes Html without being escaped."""

    __slots__ = ()


Child = str | int | float | None


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """One element. Children that are not Html are escaped; None is left out.

    A trailing underscore of an attribute's name is removed (`class_`); other underscores become hyphens
    (`aria_label`). Attributes that are None or False are left out. An attribute that is True is written
    without a value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("meta", "br"):
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    """One attribute, preceded by a space; an empty string if the attribute is left out."""
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_text(value)}"'


def _text(value: str | int | float) -> str:
    """A value as text for the page, with markup and control characters escaped."""
    return escape(printable_lines(str(value)), quote=True)


def join(children: Iterable[Child]) -> Html:
    """Children one after another, escaped unless they are markup."""
    present = (child for child in children if child is not None)
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in present))


def section(name: str, title: str, *children: Child) -> Html:
    """A section of the page; `name` is its anchor."""
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title"
    )


def lead(*children: Child) -> Html:
    """The introductory sentence of a section."""
    return tag("p", *children, class_="lead")


def missing(what: str, job: str) -> Html:
    """The sentence that replaces missing facts and names the job that writes them."""
    return tag("p", f"{what}: ", tag("code", job), " has not run for this run date.", class_="missing")


def grid(*children: Child) -> Html:
    """Children side by side, if the screen is wide enough."""
    return tag("div", *children, class_="grid")


def figure(chart: Html, title: str, caption: str) -> Html:
    """A chart below its title and caption."""
    return tag("figure", tag("figcaption", tag("strong", title), " ", caption), chart)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[Child]], caption: str, text: Sequence[int] = (0,)
) -> Html:
    """A table that scrolls sideways on a narrow screen. Columns not in `text` are right-aligned."""

    def kind(index: int) -> str | None:
        return None if index in text else "number"

    head = tag(
        "tr", *(tag("th", name, scope="col", class_=kind(index)) for index, name in enumerate(headers))
    )
    body = [
        tag("tr", *(tag("td", cell, class_=kind(index)) for index, cell in enumerate(row))) for row in rows
    ]
    element = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    return tag("div", element, class_="scroll", role="region", aria_label=caption, tabindex=0)


def facts_list(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Names and values as a definition list; pairs whose value is None are left out."""
    present = [(name, value) for name, value in pairs if value is not None]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in present))
