"""What a configuration can be refused for before any job has worked.

Every job calls `check_config`. Jobs that train, or make features for a training, call `check_training`. What starts a whole run
calls `check_tables` and `check_sinks`, and `check_lists` where the run trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import ConfigError
from conf.names import scheme_of
from conf.raw_types import RawTable
from conf.types import Config, JdbcSink, ModelConfig, Popular
from etl.ops.drop_low_cardinality import DropLowCardinality
from etl.ops.join_external import JoinExternal
from etl.raw.files import require_raw
from etl.workflow.feature_plan import Plan, plan
from scoring.delivery.secrets import read_credentials
from scoring.inputs.requests import require_context, require_no_pairs
from scoring.rules.attributes import files_of
from scoring.rules.request import AttributeTable
from spark.session import read_profile
from storage.lineage import NOT_RECORDED, LineageRecorder
from training.settings import Features, check_model, read_settings


def check_config(config: Config) -> None:
    """What every job refuses before it works: operators, settings of models, segments.

    Raises:
        ConfigError: names the key that breaks its rule.
    """
    planned = plan(config)
    for where, model in _models(config):
        with _named(where):
            read_settings(model)
    _check_segments(config, planned)


def check_training(config: Config) -> None:
    """Raises ConfigError where a model cannot be trained on the features of the configuration; names the key."""
    features = _features(config, plan(config))
    for where, model in _models(config):
        with _named(where):
            check_model(model, features)


def check_tables(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> None:
    """What would stop a later stage of a run: a table beside the log that is not there.

    Tables that are delivered by day (`{date}` in their path) may arrive while the run is under way, and those on HDFS cannot be
    seen without a session: the stages that read them check them. `recorder` notes the tables as inputs of the run.

    Raises:
        ConfigError, DataError: there is no file at a path that the configuration names.
    """
    for key, table in _tables(config).items():
        if _is_static(config, table.path):
            require_raw(config, table, run_date, key, recorder)
    rules = config.score.rules
    for each in rules.attributes.values() if rules else ():
        if _is_static(config, each.path):
            files_of(AttributeTable(_whole(config, each.path), each.format, each.key, each.column))


def check_sinks(config: Config, profile: str) -> None:
    """Raises ConfigError where a sink's user, password or driver is not where the configuration says.

    Args:
        profile: Spark's properties file. In deploy mode cluster the driver has another environment, and nothing is checked.
    """
    settings = read_profile(Path(profile)) if Path(profile).is_file() else {}
    if settings.get("spark.submit.deployMode") == "cluster":
        return
    for sink in config.deliver.sinks:
        if isinstance(sink, JdbcSink):
            _check_sink(sink)


def check_lists(config: Config) -> None:
    """Raises ConfigError where a model that is trained on these features could make no top-k lists.

    A feature that a fit may leave out (drop_low_cardinality) may have a value in score.context or not.
    """
    if not config.keys:
        return
    planned = plan(config)
    require_no_pairs(_features(config, planned).pairs)
    given = config.score.context
    context = [chain for chain in planned.chains if set(chain.outputs) & set(config.scopes.context)]
    sure = {
        name
        for chain in context
        if not any(isinstance(step.operator, DropLowCardinality) for step in chain.steps)
        for name in chain.inputs
    }
    possible = {name for chain in context for name in chain.inputs}
    require_context(sorted(sure | (possible & set(given))), given)


def _models(config: Config) -> list[tuple[str, ModelConfig]]:
    """(where the configuration has it, empty for the section `model`; the model), of all that are trained."""
    shared = config.model.multi_hot
    baselines = [
        (f"train.baselines names {name!r}: ", ModelConfig(architecture=name, multi_hot=shared))
        for name in config.train.baselines
    ]
    retrieval = config.candidates.retrieval
    towers = [("candidates.sources, retrieval: ", retrieval.model)] if retrieval else []
    return [("", config.model), *baselines, *towers]


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Puts in front of a ConfigError which model it is about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{error.problem}", error.remedy) from error


def _features(config: Config, planned: Plan) -> Features:
    kinds = {name: chain.kind for chain in planned.chains for name in chain.outputs}
    scopes = config.scopes
    scoped = {*scopes.user, *scopes.item, *scopes.context}

    def of(kind: str) -> list[str]:
        return [name for name in planned.features if kinds[name] == kind]

    pairs = [name for name in planned.features if name not in scoped]
    return Features(of("dense"), of("categorical"), of("multi_hot"), pairs)


def _check_segments(config: Config, planned: Plan) -> None:
    """A segment is a feature of scope user or a column of user_attributes."""
    table = config.candidates.user_attributes
    known = [*config.scopes.user, *(table.names if table else [])]
    for source in config.candidates.sources:
        if isinstance(source, Popular) and source.segment is not None and source.segment not in known:
            raise ConfigError(
                f"candidates.sources: segment={source.segment!r} is neither a feature of scope user nor a column of "
                f"candidates.user_attributes; these are {known}",
                "name one of these",
            )


def _tables(config: Config) -> dict[str, RawTable]:
    """Key of the configuration → the table beside the log that it names."""
    candidates = config.candidates
    named: dict[str, RawTable | None] = {
        "users.path": config.users,
        "items.path": config.items,
        "candidates.user_attributes.path": candidates.user_attributes,
        **{f"candidates.filters.{number}.path": each for number, each in enumerate(candidates.filters)},
    }
    for chain in plan(config).chains:
        for step in chain.steps:
            if isinstance(step.operator, JoinExternal):
                named[f"join_external.path={step.operator.path}"] = step.operator.source(step)[0]
    return {key: table for key, table in named.items() if table is not None}


def _is_static(config: Config, path: str) -> bool:
    return "{date}" not in path and scheme_of(_whole(config, path)) != "hdfs"


def _whole(config: Config, path: str) -> str:
    return path.replace("{lake}", config.lake).replace("{data}", config.data)


def _check_sink(sink: JdbcSink) -> None:
    read_credentials(sink)
    jar = sink.driver_jar
    if jar is not None and "://" not in jar and not Path(jar).expanduser().is_file():
        raise ConfigError(
            f"deliver.sinks: driver_jar={jar} of {sink.name} does not exist", "correct the path"
        )
