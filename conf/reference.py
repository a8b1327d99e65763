"""Reference tables in Markdown from pydantic models: key, type, default and description of each field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_WORDS = {"string": "text", "boolean": "true or false", "object": "mapping", "array": "list", "null": "null"}
_HUGE = (
    2**31 - 1_000
)  # an upper bound of at least this size is only the largest value of an integer type, so it is not shown


def field_table(kind: type[BaseModel], links: Mapping[str, str] | None = None) -> str:
    """Returns the table of the fields of a pydantic model.

    Args:
        kind: the model.
        links: maps the name of a model to the Markdown that a cell shows instead of the type `section`.
    """
    schema = kind.model_json_schema()
    rows = ["| key | type | default | description |", "|---|---|---|---|"]
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else default_text(field)
        kind_text = type_text(field, schema.get("$defs", {}), links or {})
        rows.append(f"| `{name}` | {kind_text} | {default} | {_cell(field.get('description', ''))} |")
    return "\n".join(rows) + "\n"


def default_text(field: Schema) -> str:
    """Returns the default of a field in YAML notation.

    The defaults of a section are in the section's own table, not in the row of the section.
    """
    default = field.get("default")
    if isinstance(default, dict):
        return "its defaults" if default else "`{}`"
    return _cell(f"`{json.dumps(default, ensure_ascii=False)}`")


def type_text(schema: Schema, definitions: Mapping[str, Schema], links: Mapping[str, str]) -> str:
    """Returns the type of a field and the limits of its values, in words."""
    texts = [_single_type(member, definitions, links) for member in alternatives(schema)]
    return _cell(" or ".join(dict.fromkeys(texts)))


def alternatives(schema: Schema) -> Iterator[Schema]:
    """Yields the members of a union; only the schema itself if it is not a union."""
    members = schema.get("anyOf") or schema.get("oneOf")
    if members is None:
        yield schema
        return
    for member in members:
        yield from alternatives(member)


def _single_type(schema: Schema, definitions: Mapping[str, Schema], links: Mapping[str, str]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in links or "properties" in definitions[name]:
            return links.get(name, "section")
        return type_text(definitions[name], definitions, links)
    if "allOf" in schema:
        return type_text(schema["allOf"][0], definitions, links)
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any value")
    if isinstance(kind, list):
        return " or ".join(_word(name) for name in kind)
    if kind == "array":
        return f"list of {type_text(schema['items'], definitions, links)}" if "items" in schema else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {type_text(schema['additionalProperties'], definitions, links)}"
    return _word(kind) + _limits(schema)


def _word(kind: str) -> str:
    """Returns the name in YAML of a type in a JSON schema, such as `list` for `array`."""
    return _WORDS.get(kind, kind)


def _limits(schema: Schema) -> str:
    lower = schema.get("minimum", schema.get("exclusiveMinimum"))
    upper = schema.get("maximum", schema.get("exclusiveMaximum"))
    texts = []
    if lower is not None and abs(lower) < _HUGE:
        texts.append(f"above {lower:g}" if "exclusiveMinimum" in schema else f"at least {lower:g}")
    if upper is not None and abs(upper) < _HUGE:
        texts.append(f"below {upper:g}" if "exclusiveMaximum" in schema else f"at most {upper:g}")
    return f", {', '.join(texts)}" if texts else ""


def _cell(text: str) -> str:
    """Returns a text as a cell of a Markdown table: on one line, and with escaped `|`."""
    return " ".join(text.split()).replace("|", "\\|")
