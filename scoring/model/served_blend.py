"""Finds the blend that ranks the lists of a run date, and checks it against the candidates."""

from __future__ import annotations

from typing import assert_never

from conf.errors import DataError
from scoring.inputs.requests import SOURCE_SCORES, BlendRequest
from storage.manifest import Manifest
from storage.run_context import RunContext
from training.registry.blends import BlendKey, BlendRecord, blend_as_of
from training.registry.versions import champion_as_of


def served_blend(context: RunContext, candidates: Manifest) -> BlendRecord | None:
    """Returns the blend of the champion and the sources of candidates; None without score.blend=auto.

    Args:
        context: the context of the run.
        candidates: the manifest of the candidates of the run date.

    Raises:
        DataError: no such blend was learned up to the run date.
    """
    config, lake, inputs = context.config, context.lake, candidates.inputs
    if config.score.blend == "none":
        return None
    if config.score.blend != "auto":
        assert_never(config.score.blend)
    champion = champion_as_of(lake, config.name, context.run_date) or ""
    key = BlendKey(champion, inputs["config"], inputs.get("retriever"))
    blend = blend_as_of(lake, config.name, context.run_date, key)
    if blend is None:
        raise DataError(
            f"score.blend=auto: no blend of champion {champion} and of the sources of {candidates.table} "
            f"dt={context.run_date} was learned up to this date",
            f"run learn_blend for {context.run_date}, or set score.blend=none",
        )
    return blend


def blend_request(blend: BlendRecord, candidates: Manifest) -> BlendRequest | None:
    """Returns the weights of a blend for the workers; None if the model alone ranks.

    Raises:
        DataError: the candidates were built without the scores of the sources.
    """
    if blend.weights is None:
        return None
    if SOURCE_SCORES not in dict(candidates.schema):
        raise DataError(
            f"{candidates.table} dt={candidates.partition} has no scores of the sources "
            f"{list(blend.sources)}",
            "run build_candidates again, with score.blend=auto",
        )
    weights, absent = (tuple(blend.weights[name]) for name in ("weights", "absent"))
    return BlendRequest(blend.weights["intercept"], blend.weights["logit"], weights, absent)
