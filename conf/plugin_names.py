"""Keys whose value is the name of a plug-in: the names of the checkout in the JSON schema of the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from conf.plugins import Kind


@dataclass(frozen=True)
class PluginNames:
    """An annotation of a key whose value is the name of a plug-in.

    The schema lists the names that the checkout has when the schema is made. Packages may add others.

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
