"""Fits a blend of the scores of the champion and of the candidate sources, and records the result."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Any

from conf.errors import ConfigError
from conf.load import config_digest
from jobs.runner import run_job
from scoring.candidates.candidate_tables import frames_needed, read_candidate_tables
from scoring.evaluation.blend_fit import MODEL, learn, measured_pairs
from scoring.feature_rows import count_rows
from scoring.model.champion import champion_and_dataset
from scoring.requests import BlendRequest, require_listable
from spark.choose_workers import stay_in_process
from storage.job_summary import JobSummary
from storage.run_context import RunContext, require
from training.registry.blends import BLENDS, BlendKey, BlendRecord, blend_of, record_blend
from training.registry.champion_history import dated_path

DESCRIPTION = (
    "Fits a blend: a combination of the scores of the champion and of the sources of candidates "
    "(score.blend: auto). Measures the champion, each source and the blend on clicks of the validation "
    "split, and records the best of them."
)

log = logging.getLogger("nightrank.learn_blend")


def run(context: RunContext) -> JobSummary:
    """Measures the champion, the sources and the blend on validation clicks, and records the best of them.

    If the inputs have not changed since the blend of the run date was recorded, the function does nothing.
    Without validation clicks, the record says that the model alone ranks the lists.
    """
    lake, config = context.lake, context.config
    require(config, "keys")
    if config.score.blend != "auto":
        raise ConfigError(
            "score.blend=none, so lists are ranked by the model alone and there is no blend to learn",
            "set score.blend=auto",
        )
    # The weights of the blend are fitted to the logits of the champion. The logits of its refit cannot be
    # used, because the refit was trained on the validation clicks.
    model, dataset = champion_and_dataset(context)
    require_listable(model.spec)
    if not frames_needed(config):
        stay_in_process(context, count_rows(lake, dataset))
    with context.phase("tables"):
        tables = read_candidate_tables(context, dataset.workflow_version)
    retriever = tables.retriever.version if config.candidates.retriever and tables.retriever else None
    if config.candidates.retrieval and retriever is None:
        tables = replace(tables, retriever=model)  # not its refit, which was trained on the validation clicks
    inputs = {**tables.inputs(context, dataset), "score": config_digest(config, "score")}
    key = BlendKey(model.version, config_digest(config, "candidates"), retriever)
    record = blend_of(lake, config.name, context.run_date)
    if record is None or record.key != key or record.inputs != inputs:
        with context.phase("candidates"):
            pairs = measured_pairs(context, dataset, model, tables)
        sources = [source.name for source in config.candidates.sources]
        record = BlendRecord(key, context.run_date, inputs, sources, config.score.k, 0, MODEL, [], None)
        if pairs is not None:
            with context.phase("fit"):
                learned = learn(pairs, sources, config.score.k)
            record = replace(
                record,
                users=len(pairs.positives),
                chosen=learned.chosen,
                contenders=[{"name": name, **asdict(figures)} for name, figures in learned.figures.items()],
                weights=_weights(learned.request) if learned.request else None,
            )
        record_blend(lake, config.name, record)
    if record.users:
        best = max(contender["ndcg"] for contender in record.contenders)
        log.info("lists are ranked by %s: NDCG@%d %.4f on validation clicks", record.chosen, record.k, best)
    else:
        log.warning(
            "no blend can be learned for %s, so lists are ranked by the model alone until a later run learns "
            "one: no user has a click in the validation split and a row in the train split",
            context.run_date,
        )
    return JobSummary(
        output=dated_path(lake, config.name, BLENDS, context.run_date),
        rows_in=record.users,
        facts={**record.to_facts(), "champion": model.version},
    )


def _weights(request: BlendRequest) -> dict[str, Any]:
    """Returns the learned weights of the blend as JSON values."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(request).items()
    }


if __name__ == "__main__":
    run_job("learn_blend", DESCRIPTION, run)
