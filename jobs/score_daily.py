"""Publishes the serving model's top-k items for every user as `recommendations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from conf.errors import DataError
from conf.load import config_digest
from conf.stage_types import ServingExperiment
from conf.train_types import ScoreKind
from jobs.runner import run_job
from scoring.candidates.candidate_items import publish_treatment_items
from scoring.delivery.publish_limits import publish_changes
from scoring.feature_rows import list_manifests
from scoring.model.champion import blend_request, served_blend, serving_model_and_dataset
from scoring.model.context_features import encoded_context, raw_context
from scoring.model.experiment import Treatment, read_treatment, with_variants
from scoring.model.model_info import ModelInfo
from scoring.ranking.list_summary import summarize_lists
from scoring.requests import CONTROL, TREATMENT, VARIANT, ListRequest, require_listable
from scoring.rules.attributes import read_rules
from scoring.spark.int8_change import change_of_lists
from scoring.spark.score_frames import score_lists
from spark.choose_workers import stay_in_process
from spark.rows import Rows, query, quoted, read_rows, records, spread, table_of, union_all, with_value
from storage import file_io
from storage.dataset import Dataset
from storage.feature_spec import USER_KEY
from storage.job_summary import JobSummary
from storage.manifest import Manifest, data_files
from storage.publish import Rules, publish_rows
from storage.run_context import RunContext, require
from training.registry.blends import BlendRecord
from training.registry.served_experiments import ServedExperiment
from training.registry.versions import code_version

DESCRIPTION = (
    "Scores the candidates of every user with the model that serves, and publishes the top-k lists as "
    "`recommendations`."
)


@dataclass(frozen=True)
class VariantLists:
    """The inputs for the lists of one variant. Without an experiment, all users are in the control.

    Attributes:
        name: `control` or `treatment`.
        model: the model that ranks the lists of this variant.
        users: the manifest of the table `users` of the model's workflow.
        request: what workers need to score the lists.
    """

    name: str
    model: ModelInfo
    users: Manifest
    request: ListRequest


# Maximum number of users per scoring task. This limits the work that Spark repeats if it loses a task.
USERS_PER_TASK = 50_000
# Maximum number of list entries that are collected from Spark to the driver: about 100 MB.
ENTRIES_IN_DRIVER = 2_000_000
_REPORTED = ("users", "users_with_fewer", "users_without", "coverage", "k")


def run(context: RunContext) -> JobSummary:
    """Scores, summarises and publishes the lists of the run date."""
    require(context.config, "keys")
    model, dataset = serving_model_and_dataset(context)
    require_listable(model.spec)
    experiment, treatment = read_treatment(context, model)
    users, items, candidates = list_manifests(context.lake, dataset.workflow_version, context.run_date)
    stay_in_process(context, users.rows * context.config.score.k)
    request, rule_digests = list_request(context, model, items)
    shown_context = raw_context(context, model)
    blend = served_blend(context, candidates)
    if blend is not None:
        request = replace(request, blend=blend_request(blend, candidates))
    variants = [VariantLists(CONTROL, model, users, request)]
    if treatment is not None:
        variants.append(treatment_lists(context, treatment, dataset, items, request))
    score = context.config.score
    measured: dict[str, Any] = {}
    if request.model.embeddings == "int8":
        with context.phase("int8"):
            partition = context.lake.users(dataset.workflow_version).partition(context.run_date)
            known = read_rows(context, partition, users)
            measured = {"int8": change_of_lists(known, model.spec, request)}
    with context.phase("score"):
        lists = _score(context, dataset, candidates, variants, experiment)
        if isinstance(lists, DataFrame):
            # Small lists are collected with one query and then processed with Arrow, because Spark takes
            # longer to plan further queries than Arrow takes to process the rows.
            lists = table_of(lists) if users.rows * score.k <= ENTRIES_IN_DRIVER else lists.persist()
        facts = summarize_lists(lists, score.k, users.rows, items.rows)
    rows = facts.pop("rows")
    if not rows:
        raise DataError(
            f"none of the {users.rows} users has an item in a list, so no lists of {context.run_date} are "
            "published: the candidates of every user are empty, or the rules leave out all of them",
            "read `places_by_source` in the summary of build_candidates; check candidates.sources, "
            "candidates.exclude_clicked, candidates.filters and score.rules",
        )
    inputs = {"model": model.version, "users": users.digest, "candidates": candidates.digest, **rule_digests}
    inputs |= _inputs_of(experiment, treatment)
    # A sink compares the digest of these inputs with that of the lists that it has. The version of the code
    # is an input, so that lists are delivered again if an upgrade has changed them.
    inputs["code"] = code_version("scoring")
    ranked_by = {}
    if blend is not None:
        inputs["blend"], ranked_by = blend.digest, {"blend": blend.to_facts()}
    with context.phase("compare"):
        changes = publish_changes(context, dataset, lists, facts, rows, inputs)
    with context.phase("publish"):
        versions = {"model_version": model.version, "workflow_version": dataset.workflow_version}
        refit = {"refit_of": model.refit_of} if model.refit_of else {}
        shown = {"experiment": _facts_of(experiment, variants, lists)} if experiment else {}
        published = publish_rows(
            lists if experiment else _with_texts(lists, versions),
            context.lake.recommendations.partition(context.run_date),
            inputs={**inputs, "config": config_digest(context.config, "score")},
            row_group_rows=context.config.output.row_group_rows,
            expected_rows=rows,
            facts={
                **facts,
                **measured,
                **versions,
                **refit,
                **ranked_by,
                **shown,
                **({"context": shown_context} if shown_context else {}),
                "scores": _score_kind(context, variants, blend),
                "precision": score.precision,
                "scored_at": file_io.utc_now(),
            },
            rules=Rules(
                not_null=["user_id", "item_id", "score", "reason"],
                ranges={"position": (1, score.k + 1), "score": (0.0, 1.0 + 2**-20)},
            ),
            sort_by=["user_id", "position"],
            grace_hours=context.config.output.grace_hours,
        )
    return JobSummary(
        output=context.lake.recommendations.partition(context.run_date).path,
        rows_in=users.rows,
        rows_out=published.rows,
        facts={
            **{name: facts[name] for name in _REPORTED},
            **measured,
            **versions,
            **refit,
            **({"ranked_by": blend.chosen} if blend else {}),
            **({"context": shown_context} if shown_context else {}),
            **shown,
            "churn": changes.get("churn"),
        },
    )


def _score_kind(
    context: RunContext, variants: Sequence[VariantLists], blend: BlendRecord | None
) -> ScoreKind:
    """Returns the kind of the lists' scores.

    Scores of a blend, or of models whose scores have different kinds, only order the items of a user.
    """
    kinds = {variant.model.score_kind(context.config) for variant in variants}
    ranked_by_model = blend is None or blend.chosen == "model"
    return kinds.pop() if ranked_by_model and len(kinds) == 1 else "ranking"


def _with_texts(lists: Rows, texts: Mapping[str, str]) -> Rows:
    """Adds a column for each name in `texts`. All rows have the string to which `texts` maps the name."""
    for name, value in texts.items():
        lists = with_value(lists, name, value)
    return lists


def treatment_lists(
    context: RunContext, treatment: Treatment, dataset: Dataset, items: Manifest, control: ListRequest
) -> VariantLists:
    """Returns the inputs for the lists of the treatment, with the candidates and rules of the control."""
    model = treatment.model
    version, run_date = model.spec.workflow_version, context.run_date
    partition = context.lake.candidate_items(version).partition(run_date)
    if version != dataset.workflow_version:
        with context.phase("items of the treatment"):
            items = publish_treatment_items(context, dataset.workflow_version, items, treatment)
        partition = context.lake.experiment_items(version).partition(run_date)
    request = replace(
        control,
        model=model.request(context.config.score),
        item_files=tuple(data_files(partition, items)),
        context=tuple(sorted(encoded_context(context, model).items())),
    )
    return VariantLists(TREATMENT, model, treatment.users, request)


def _score(
    context: RunContext,
    dataset: Dataset,
    candidates: Manifest,
    variants: Sequence[VariantLists],
    experiment: ServedExperiment | None,
) -> Rows:
    """Returns the lists of all users.

    With an experiment, they also have the columns model_version, workflow_version and variant.
    """
    if experiment is None:
        (control,) = variants
        scored = candidate_users(context, dataset, control.users, candidates)
        return score_lists(scored, control.model.spec, control.request)
    settings = experiment.settings if len(variants) > 1 else None
    parts = []
    for variant in variants:
        scored = candidate_users(context, dataset, variant.users, candidates, variant, settings)
        lists = score_lists(scored, variant.model.spec, variant.request)
        versions = {
            "model_version": variant.model.version,
            "workflow_version": variant.model.spec.workflow_version,
        }
        parts.append(_with_texts(lists, {**versions, VARIANT: variant.name}))
    return union_all(parts)


def _inputs_of(experiment: ServedExperiment | None, treatment: Treatment | None) -> dict[str, str]:
    """Maps the names of the additional inputs that the lists have during an experiment to their digests."""
    inputs = {"experiment": experiment.digest} if experiment else {}
    if treatment is not None:
        inputs |= {"treatment_users": treatment.users.digest, "treatment_items": treatment.items.digest}
    return inputs


def _facts_of(experiment: ServedExperiment, variants: Sequence[VariantLists], lists: Rows) -> dict[str, Any]:
    """Returns the facts of an experiment: its settings, and model, users and coverage of each variant."""
    counted = query(
        f"""
        SELECT {VARIANT}, count(DISTINCT user_id) AS users, count(DISTINCT item_id) AS items_recommended
        FROM {{lists}} GROUP BY {VARIANT}
        """,
        lists=lists,
    )
    counts = {row.pop(VARIANT): row for row in records(counted)}
    return {
        "name": experiment.settings.name,
        "share": experiment.settings.share,
        "salt": experiment.settings.salted_prefix,
        "idle_because": experiment.idle_because,
        "variants": {
            variant.name: {
                "model_version": variant.model.version,
                "workflow_version": variant.model.spec.workflow_version,
                **counts.get(variant.name, {"users": 0, "items_recommended": 0}),
            }
            for variant in variants
        },
    }


def list_request(
    context: RunContext, model: ModelInfo, items: Manifest
) -> tuple[ListRequest, dict[str, str]]:
    """Returns the request that workers need to score lists, and the digests of the tables of rules.

    The rules are the business rules of the section `score`.
    """
    values = encoded_context(context, model)
    table = context.lake.candidate_items(model.spec.workflow_version)
    item_files = data_files(table.partition(context.run_date), items)
    rules, digests = read_rules(context)
    score = context.config.score
    request = ListRequest(
        model.request(score), tuple(item_files), tuple(sorted(values.items())), score.k, rules
    )
    return request, digests


def candidate_users(
    context: RunContext,
    dataset: Dataset,
    users: Manifest,
    candidates: Manifest,
    variant: VariantLists | None = None,
    experiment: ServingExperiment | None = None,
) -> Rows:
    """Returns the rows of the users, joined with their candidates.

    If the result is a Spark frame, it has enough partitions for all cores. The rows are read from the files
    that the two manifests list, even if the tables are replaced at the same time.

    Args:
        context: the context of the run, which decides whether rows are tables or Spark frames.
        dataset: the dataset of the run date; `candidates` was built with its workflow version.
        users, candidates: the manifests of the tables `users` and `candidates`.
        variant: the variant whose users are returned, with the features of its workflow.
        experiment: assigns users to variants. If it is None, all users are returned.
    """
    lake, version = context.lake, dataset.workflow_version
    listed = read_rows(context, lake.candidates(version).partition(context.run_date), candidates)
    if variant is not None:
        version = variant.model.spec.workflow_version
    if variant is not None and experiment is not None:
        columns = [name for name, _ in candidates.schema]
        assigned = with_variants(listed, USER_KEY, experiment, columns)
        kept = ", ".join(map(quoted, columns))
        text = f"SELECT {kept} FROM {{assigned}} WHERE {VARIANT} = '{variant.name}'"
        listed = query(text, assigned=assigned)
    joined = query(
        "SELECT * FROM {users} AS users JOIN {candidates} AS candidates USING (user_key)",
        users=read_rows(context, lake.users(version).partition(context.run_date), users),
        candidates=listed,
    )
    return spread(joined, USER_KEY, -(-users.rows // USERS_PER_TASK))


if __name__ == "__main__":
    run_job("score_daily", DESCRIPTION, run)
