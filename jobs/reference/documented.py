"""The type of a configuration for documents: the sinks have the types of their settings.

Config leaves the settings of sinks open, because modules in scoring define them.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field, create_model

from conf.types import Config, Deliver
from scoring.delivery.sinks import built_in_sinks, sink_section


def documented_config() -> type[Config]:
    """Returns the type of a configuration whose `deliver.sinks` is a union of the sinks in this checkout."""
    members: list[Any] = [sink_section(kind) for kind in built_in_sinks()]
    sink: Any = Annotated[reduce(or_, members), Field(discriminator="kind")]
    sinks: Any = (list[sink], Deliver.model_fields["sinks"])
    deliver = create_model("Deliver", __base__=Deliver, __doc__=Deliver.__doc__, sinks=sinks)
    field: Any = (deliver, Config.model_fields["deliver"])
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, deliver=field)
