"""Adds the names of the checkout's plug-ins to the JSON schema of a key whose value is such a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from conf.plugins import Kind


@dataclass(frozen=True)
class PluginNames:
    """An annotation of a key whose value is the name of a plug-in.

    The schema lists the names that the checkout has when the schema is created. Packages may add other names.

    Attributes:
        kind: the kind of the plug-ins.
    """

    kind: Kind

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        """Returns the JSON schema of the key."""
        return self.schema()

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of a text that is one of the names."""
        return {"enum": [*self.kind.built_in()], "type": "string"}


def list_names(kind: Kind) -> Callable[[dict[str, Any]], None]:
    """Returns a function that adds the checkout's names to a description when a schema is created."""

    def add(schema: dict[str, Any]) -> None:
        names = ", ".join(f"`{name}`" for name in kind.built_in())
        schema["description"] += f" The {kind.words} of the checkout are {names}."

    return add
