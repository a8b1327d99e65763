"""Builds HTML with escaped text: a plain string is text, and only `Html` is markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from conf.messages import printable_lines


class Html(str):
    """HTML markup, which is not escaped again. Escape text from data before you convert it to Html."""

    __slots__ = ()


class Section(Html):
    """A section of a page, as markup.

    Attributes:
        name: the anchor of the section.
        heading: its title.
    """

    __slots__ = ("heading", "name")
    name: str
    heading: str


Child = str | int | float | None


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Returns one HTML element. Children that are None are left out; children that are not Html are escaped.

    In the name of an attribute, a trailing underscore is removed (`class_`), and other underscores become
    hyphens (`aria_label`). Attributes that are None or False are left out. An attribute that is True is
    written without a value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("meta", "br"):
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    """Returns one attribute, preceded by a space. If the attribute is left out, returns an empty string."""
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_text(value)}"'


def _text(value: str | int | float) -> str:
    """Returns a value as text for the page, with markup and control characters escaped."""
    return escape(printable_lines(str(value)), quote=True)


def join(children: Iterable[Child]) -> Html:
    """Returns the children one after another. Children that are not Html are escaped."""
    present = (child for child in children if child is not None)
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in present))


def section(name: str, title: str, *children: Child) -> Section:
    """Returns a section of the page. `name` is the anchor of the section."""
    head = tag("h2", title, id=f"{name}-title")
    whole = Section(tag("section", head, *children, id=name, aria_labelledby=f"{name}-title"))
    whole.name, whole.heading = name, title
    return whole


def contents(sections: Iterable[Section]) -> Html:
    """Returns a list of links to sections."""
    links = [tag("li", tag("a", part.heading, href=f"#{part.name}")) for part in sections]
    return tag("nav", tag("ul", *links), class_="contents", aria_label="Contents")


def lead(*children: Child) -> Html:
    """Returns the introductory sentence of a section."""
    return tag("p", *children, class_="lead")


def missing(what: str, job: str) -> Html:
    """Returns the sentence that is shown in place of missing results. It names the job that writes them."""
    return tag("p", f"{what}: ", tag("code", job), " has no result for this run date.", class_="missing")


def grid(*children: Child) -> Html:
    """Returns an element that shows the children side by side, if the screen is wide enough."""
    return tag("div", *children, class_="grid")


def figure(chart: Html, title: str, caption: str) -> Html:
    """Returns a chart with its title and caption above it."""
    return tag("figure", tag("figcaption", tag("strong", title), " ", caption), chart)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[Child]], caption: str, text: Sequence[int] = (0,)
) -> Html:
    """Returns a table that can be scrolled sideways on a narrow screen.

    Args:
        headers: one header per column.
        rows: the cells of each row.
        caption: the caption of the table.
        text: indices of the columns that are aligned left. All other columns are aligned right.
    """

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
    """Returns names and values as a definition list. Pairs whose value is None are left out."""
    present = [(name, value) for name, value in pairs if value is not None]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in present))
