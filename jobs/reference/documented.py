"""The type of a configuration for documents: the sinks have the types of their settings.

Config leaves the settings of sinks open, because modules in scoring define them. Sources of candidates and
sinks of other packages are not in the documents.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field, create_model

from conf.package_source_types import DocumentedSource
from conf.types import Candidates, Config, Deliver
from scoring.delivery.sinks import built_in_sinks, sink_section


def documented_config() -> type[Config]:
    """Returns the type of a configuration whose sinks and sources are unions of those in this checkout."""
    members: list[Any] = [sink_section(kind) for kind in built_in_sinks()]
    sink: Any = Annotated[reduce(or_, members), Field(discriminator="kind")]
    sinks: Any = (list[sink], Deliver.model_fields["sinks"])
    deliver = create_model("Deliver", __base__=Deliver, __doc__=Deliver.__doc__, sinks=sinks)
    sources: Any = (list[DocumentedSource], Candidates.model_fields["sources"])
    candidates = create_model("Candidates", __base__=Candidates, __doc__=Candidates.__doc__, sources=sources)
    fields: Any = {
        "candidates": (candidates, Config.model_fields["candidates"]),
        "deliver": (deliver, Config.model_fields["deliver"]),
    }
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, **fields)
