"""Checks that reject a wrong configuration before a job does any work.

Every job calls `check_config`. Jobs that train, or build features for training, call `check_training`. Jobs
that start all stages of a run call `check_tables` and `check_sinks`, and `check_lists` if the run trains.
`check_tables` and `check_sinks` read tables, credentials and drivers; the other checks read only the
configuration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from conf.errors import ConfigError, DataError
from conf.experiments import Experiment
from conf.names import SPARK_TABLE, has_date
from conf.raw_types import RawTable
from conf.types import Config, ModelConfig
from etl.ops.base import LISTS
from etl.raw.files import require_raw
from etl.readers.table_heads import check_heads
from etl.workflow.chains import Chain
from etl.workflow.feature_plan import FeaturePlan, features_with_oov_id, plan_of
from etl.workflow.raw_values import one_row, raw_types
from reporting.monitoring.run_observer import check_openlineage
from scoring.candidates.source_settings import read_sources
from scoring.delivery.sinks import check_access
from scoring.delivery.sinks import read_settings as read_sinks
from scoring.requests import require_context, require_no_pairs
from scoring.rules.attributes import SECTION, files_of, typed_table
from scoring.rules.request import attribute_table, read_rule_settings
from spark.profile import launch_settings, read_properties
from storage.lineage import NOT_RECORDED, LineageRecorder
from training.loop.training_plan import TrainPlan
from training.settings import Features, check_loss, check_model, check_retriever, read_settings
from training.settings.check_settings import require_no_pair_features, require_oov_ids

_RETRIEVAL = "candidates.sources, retrieval: "  # prefix of error messages about the retrieval model


def check_config(config: Config) -> None:
    """Checks operators, settings of models, sources, rules and sinks, and that sections are consistent.

    Every job calls this function first.

    Raises:
        ConfigError: a key breaks its rule; the error names the key.
    """
    feature_plan = plan_of(config)
    for location, model in _models(config):
        with _located(location):
            read_settings(model)
    if config.candidates.retrieval:
        with _located(_RETRIEVAL):
            check_retriever(config.candidates.retriever or config.model)
    read_sources(config.candidates)
    read_rule_settings(config.score.rules)
    read_sinks(config.deliver, config.folders)
    _check_segments(config, feature_plan)
    _check_blend(config)
    _check_experiment(config)
    _check_impressions(config)
    _check_measures(config, feature_plan)
    _check_context_texts(config, feature_plan)
    check_openlineage(config.watch.openlineage)


def check_training(config: Config) -> None:
    """Checks that every model can be trained on the features of the configuration.

    Raises:
        ConfigError: a model cannot be trained; the error names the key.
    """
    feature_plan = plan_of(config)
    features = _features(config, feature_plan)
    _check_labels(config)
    if config.train.negatives:
        require_no_pair_features(features.pairs)
    if config.train.unknown_share:
        require_oov_ids(config.train.unknown_share, features_with_oov_id(feature_plan))
        _require_keys(config, "train.unknown_share replaces ids of users and items", "train.unknown_share")
    if config.train.shuffle == "users":
        _require_keys(config, "train.shuffle=users orders rows by user", "train.shuffle")
    for location, model in _models(config):
        with _located(location):
            check_model(model, features)
            check_loss(config.train, model)


def _check_labels(config: Config) -> None:
    """Raises ConfigError if all train rows would be clicks, but the loss compares clicks with other rows."""
    draws = config.negatives is not None and config.negatives.train
    if config.log.label.is_only_clicks and not draws and not config.train.only_positive_rows:
        reason = (
            "negatives.train=false adds no rows" if config.negatives else "no section `negatives` adds rows"
        )
        raise ConfigError(
            f"every row of the log is a click (log.label names no column), and {reason} with label 0 to the "
            f"train split, but train.loss={config.train.loss_name} cannot learn from clicks alone",
            "set negatives.train=true, or draw negatives during training with train.negatives, such as "
            "{per_positive: 4}, or choose a train.loss over item vectors. If the log has rows that are not "
            "clicks, name the column with the label in log.label"
            if config.negatives
            else "add the section `negatives`, such as {per_positive: 4}, or choose a train.loss over item "
            "vectors. If the log has rows that are not clicks, name the column with the label in log.label",
        )


def _require_keys(config: Config, need: str, setting: str) -> None:
    if config.keys is None:
        raise ConfigError(
            f"{need}, but the section `keys` is missing",
            f"name the columns of the user and the item under `keys`, or remove {setting}",
        )


def check_lists(config: Config) -> None:
    """Checks that a model that is trained on these features can make top-k lists.

    The names and types of the values in score.context are checked too. A raw column of the context that
    contains lists must have a value there. For any other column of the context without a value, the lists use
    the most frequent value in the train rows.

    Raises:
        ConfigError: the model cannot make top-k lists.
    """
    if not config.keys:
        return
    feature_plan = plan_of(config)
    require_no_pairs(_features(config, feature_plan).pairs)
    values, chains = config.score.context, _context_chains(config, feature_plan)
    types = raw_types(chains)
    lists = [name for name, kind in types.items() if kind in LISTS]
    require_context(sorted({*lists, *(set(types) & set(values))}), values)
    try:
        one_row(chains, values)
    except ValueError as error:
        raise ConfigError(
            f"score.context: {error}",
            "correct the value: true and false are 1 and 0, a date is the number of days and a timestamp "
            "the number of microseconds since 1970-01-01. Or remove the column: lists then use its most "
            "frequent value in the train rows",
        ) from error


def _context_chains(config: Config, feature_plan: FeaturePlan) -> list[Chain]:
    """Returns the chains of operators that compute features of scope `context`."""
    return [chain for chain in feature_plan.chains if set(chain.outputs) & set(config.scopes.context)]


def _check_context_texts(config: Config, feature_plan: FeaturePlan) -> None:
    """Raises ConfigError if score.context has a number for a column of strings.

    YAML reads many strings without quotes as numbers, and the number does not show what was written.
    """
    values = config.score.context
    for name, kind in raw_types(_context_chains(config, feature_plan)).items():
        if kind == "string" and isinstance(values.get(name), int | float):
            raise ConfigError(
                f"score.context: {name}={values[name]!r} is a number, but the column has the type string. "
                "Without quotes, YAML reads 7 and 010 as the numbers 7 and 8, 12:30 as 750, and NO as false, "
                "which is 0",
                f'write the value of the log in quotes, such as {name}: "010", and with --set also in the '
                f"quotes of the shell: --set 'score.context.{name}=\"010\"'",
            )


def _models(config: Config) -> list[tuple[str, ModelConfig]]:
    """Returns a pair (location, model) for each model that is trained.

    The location says where the configuration names the model. Error messages begin with it.
    """
    multi_hot = config.model.multi_hot
    baselines = [
        (f"train.baselines names {name!r}: ", ModelConfig(architecture=name, multi_hot=multi_hot))
        for name in config.train.baselines
    ]
    retriever = config.candidates.retriever
    retrievers = [(_RETRIEVAL, retriever)] if retriever else []
    return [("", config.model), *baselines, *retrievers]


@contextmanager
def _located(location: str) -> Iterator[None]:
    """Adds the location of a model to the start of a ConfigError that the `with` block raises."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{location}{error.problem}", error.remedy) from error


def _features(config: Config, feature_plan: FeaturePlan) -> Features:
    """Returns the names of all features by kind, and the names of the features with the scope `pair`."""
    kinds = {name: chain.kind for chain in feature_plan.chains for name in chain.outputs}
    scopes = config.scopes
    scoped = {*scopes.user, *scopes.item, *scopes.context}

    def of(kind: str) -> list[str]:
        return [name for name in feature_plan.features if kinds[name] == kind]

    pairs = [name for name in feature_plan.features if name not in scoped]
    items = [
        name
        for chain in feature_plan.chains
        if config.keys and chain.inputs == (config.keys.item,) and chain.kind == "categorical"
        for name in chain.outputs
    ]
    return Features(of("dense"), of("categorical"), of("multi_hot"), pairs, items)


def _check_blend(config: Config) -> None:
    """Raises ConfigError if a blend is configured, but no source gives scores."""
    sources = config.candidates.sources
    if config.score.blend == "auto" and any(source.every_item for source in sources):
        raise ConfigError(
            "score.blend=auto needs the scores of sources, but the only source in candidates.sources is "
            "all_items, which gives no scores",
            "name other sources, such as {source: ease, n: 500} and {source: popular, n: 100}, or set "
            "score.blend=none",
        )


def _check_experiment(config: Config) -> None:
    """Raises ConfigError if there is an experiment, but its lists cannot be made or measured."""
    if config.serving.experiment is None:
        return
    if not config.keys:
        raise ConfigError(
            "serving.experiment assigns users to variants, but the section `keys` is missing",
            "name the columns of the user and the item under `keys`, or remove serving.experiment",
        )
    if config.score.blend != "none":
        raise ConfigError(
            f"serving.experiment needs score.blend=none, not score.blend={config.score.blend}, because a "
            f"blend is fitted for the champion and is wrong for the model of the treatment",
            "set score.blend=none, or remove serving.experiment",
        )
    if config.measure.against != "next_day":
        raise ConfigError(
            f"serving.experiment needs measure.against=next_day, not {config.measure.against}, because "
            "only clicks after the lists were made can be used to compare the variants",
            "set measure.against=next_day, or remove serving.experiment",
        )
    _require_dated_clicks(config, "serving.experiment")


def _require_dated_clicks(config: Config, section: str) -> None:
    """Raises ConfigError if the clicks of the day after the run date cannot be identified."""
    if not config.log.by_day and config.log.event_time is None:
        raise ConfigError(
            f"{section} needs the clicks of the day after the run date, but log.path={config.log.path!r} has "
            "no {date}, and rows have no log.event_time",
            f"store the log by day, set log.event_time, or remove {section}",
        )


def _check_impressions(config: Config) -> None:
    """Raises ConfigError if a log of impressions is configured, but no lists can be compared with it."""
    if config.serving.impressions is None:
        return
    if not config.keys:
        raise ConfigError(
            "serving.impressions compares the lists of users, but the section `keys` is missing",
            "name the columns of the user and the item under `keys`, or remove serving.impressions",
        )
    if config.measure.against != "next_day":
        raise ConfigError(
            f"serving.impressions needs measure.against=next_day, not {config.measure.against}, because "
            "the lists are shown on the day after the run date",
            "set measure.against=next_day, or remove serving.impressions",
        )
    _require_dated_clicks(config, "serving.impressions")


def _check_measures(config: Config, feature_plan: FeaturePlan) -> None:
    """Raises ConfigError if the lists leave out all items of the clicks with which they are compared.

    This check does not apply to configurations with features of scope `pair`, because they make no lists.
    """
    candidates = config.candidates
    compares_excluded = (
        config.measure.against == "test_split"
        and "test" in candidates.exclude_clicked
        and config.repeats != "all"
    )
    if compares_excluded and config.keys and not _features(config, feature_plan).pairs:
        left = [split for split in candidates.exclude_clicked if split != "test"]
        problem = (
            f"leaves the items of these clicks out of the lists (candidates.repeats={config.repeats}), so no "
            "list can have a hit"
        )
        if (events := candidates.exclude_events) is not None:
            problem = f"leaves the items of clicks with the events {events} out of the lists"
        raise ConfigError(
            "measure.against=test_split compares the lists with clicks of the test split, but "
            f"candidates.exclude_clicked={candidates.exclude_clicked} {problem}",
            "set measure.against=next_day for lists that are served; to measure lists that are not served, "
            f"set candidates.exclude_clicked={json.dumps(left)}",
        )


def _check_segments(config: Config, feature_plan: FeaturePlan) -> None:
    """Raises ConfigError if a source has a segment that is neither a user feature nor a user attribute."""
    table = config.candidates.user_attributes
    known = [*config.scopes.user, *(table.names if table else [])]
    for segment in (name for source in config.candidates.sources for name in source.segments):
        if segment not in known:
            raise ConfigError(
                f"candidates.sources: segment={segment!r} is neither a feature of scope user nor a "
                f"column of candidates.user_attributes; the possible names are {known}",
                "write one of these names as `segment`",
            )


# The functions below check the experiments of a comparison before any of them is trained.


def check_experiments(path: str, experiments: Sequence[Experiment]) -> None:
    """Checks that each experiment can be trained on the features of its configuration.

    Args:
        path: the experiments file, for error messages.
        experiments: the experiments.

    Raises:
        ConfigError: an architecture or one of its settings is not valid; the error names the experiment.
    """
    for experiment in experiments:
        config = next(iter(experiment.configs.values()))  # the seeds do not change the result of the checks
        try:
            check_config(config)
            check_training(config)
        except ConfigError as error:
            changed = ", ".join(f"{key}={value!r}" for key, value in experiment.changes.items()) or "nothing"
            raise ConfigError(
                f"{path}: experiment {experiment.name!r}, which sets {changed}: {error.problem}", error.remedy
            ) from error


def check_plans(path: str, plans: Mapping[tuple[str, int], TrainPlan]) -> None:
    """Checks that all training runs would make different models, and that the validation split has rows.

    Args:
        path: the experiments file, for error messages.
        plans: maps the name of an experiment and a seed to the plan of the training run.

    Raises:
        ConfigError: two experiments make the same model.
        DataError: the validation split has no rows.
    """
    first: dict[str, str] = {}
    for (name, _), training in plans.items():
        other = first.setdefault(training.description["version"], name)
        if other != name:
            raise ConfigError(
                f"{path}: the experiments {other!r} and {name!r} train the same model: their settings are "
                "equal, or differ only in settings that do not change a model, such as train.num_ranks",
                "remove one of the two experiments",
            )
    if not all(plan.splits["validation"] for plan in plans.values()):
        raise DataError(
            "the validation split of the dataset has no rows, so experiments cannot be compared on it",
            "use a dataset with a validation split; see the section split of the configuration",
        )


# The functions below check that the tables, credentials and drivers of a configuration exist.


def check_tables(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> None:
    """Checks all tables other than the log. A missing or bad table would stop a later stage of the run.

    The tables must exist. Their headers or schemas must have the configured columns, and their first rows
    must have values of the configured types. The first rows of the tables of users and items must have
    different keys.

    Tables with one file per day (`{date}` in the path) are not checked here, because a file may arrive during
    the run. The stage that reads such a table checks it. The same holds for tables of Spark's catalogue.
    `recorder` records the tables as inputs of the run.

    Raises:
        ConfigError, DataError: there is no file at a path in the configuration, a file lacks a column, or a
            value cannot be parsed.
    """
    for key, (table, id_column) in _tables(config).items():
        if _is_static(table.path) and table.format != SPARK_TABLE:
            raw = require_raw(config, table, run_date, key, recorder)
            section = key.removesuffix(".path")
            check_heads(table, raw.paths, section, id_column, is_unique=section in ("users", "items"))
    rules = config.score.rules
    for attribute in rules.attributes.values() if rules else ():
        if _is_static(attribute.path):
            of_items = attribute_table(attribute, config.folders)
            check_heads(typed_table(of_items)[0], files_of(of_items), SECTION, None)


def check_sinks(config: Config, profile: str) -> None:
    """Checks that the user, password, driver and catalogue to which the settings of each sink refer exist.

    Args:
        config: the configuration, with the sinks in its section `deliver`.
        profile: Spark's properties file. In deploy mode `cluster` nothing is checked, because the driver runs
            in a different environment.

    Raises:
        ConfigError: a user, a password, a driver, a catalogue or a column of users is missing.
    """
    settings = read_properties(Path(profile))
    if settings.get("spark.submit.deployMode") == "cluster":
        return
    check_access(config.deliver, config.folders)
    _check_user_columns(config)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # under spark-submit, the profile is not known here
        _check_catalogues(config, {**settings, **launch_settings(os.environ)})


def _check_catalogues(config: Config, settings: Mapping[str, str]) -> None:
    """Checks that the Spark profile has the catalogues of the tables to which sinks deliver.

    Raises:
        ConfigError: the profile lacks a setting.
    """
    for _, sink in read_sinks(config.deliver, config.folders):
        missing = [name for name in getattr(sink, "spark_settings", ()) if name not in settings]
        if missing:
            raise ConfigError(
                f"the sink {sink.name} delivers to a table of Spark's catalogue, but the Spark profile lacks "
                f"{', '.join(missing)}",
                "pass a profile with the catalogue and with the jar of its format as --profile "
                "(docs/delivery.md#delta-and-iceberg)",
            )


def _check_user_columns(config: Config) -> None:
    """Checks that the table of users has the columns that sinks deliver.

    Raises:
        ConfigError: there is no table of users, or it does not declare a column with the type string.
    """
    columns = {column.name: column for column in config.users.columns} if config.users else {}
    declared = {name: column.type for name, column in columns.items()}
    for _, settings in read_sinks(config.deliver, config.folders):
        wrong = [name for name in getattr(settings, "user_columns", []) if declared.get(name) != "string"]
        if wrong:
            remedy = "add them to users.columns, such as {name: email, type: string}"
            if typed := [name for name in wrong if name in declared]:
                # The first of the two columns remains, because features may read it.
                added = ", ".join(
                    f"{{name: {name}_text, source: {columns[name].source_name}, type: string}}"
                    for name in typed
                )
                remedy = (
                    f"add a second column with the type string, {added}, to users.columns, and deliver it"
                )
            raise ConfigError(
                f"the sink {settings.name} has user_columns={wrong}, which the section `users` does not "
                "declare with the type string",
                remedy,
            )


def _tables(config: Config) -> dict[str, tuple[RawTable, str | None]]:
    """Returns all tables of the configuration other than the log, by the key that names the table.

    Each value is a pair (table, name of its column with ids of users or items, or None).
    """
    candidates, keys = config.candidates, config.keys
    tables: dict[str, tuple[RawTable, str | None]] = {}
    if config.users and keys:
        tables["users.path"] = config.users, keys.user
    if config.items and keys:
        tables["items.path"] = config.items, keys.item
    if candidates.user_attributes:
        tables["candidates.user_attributes.path"] = (
            candidates.user_attributes,
            candidates.user_attributes.key,
        )
    for index, table in enumerate(candidates.filters):
        tables[f"candidates.filters.{index}.path"] = table, table.item
    return tables | {name: (table, None) for name, table in plan_of(config).external_tables.items()}


def _is_static(path: str) -> bool:
    """Returns whether the table at `path` must exist before the run."""
    return not has_date(path)


def _resolved(config: Config, path: str) -> str:
    """Returns the path. `{lake}` and `{data}` are replaced by the folders of the configuration."""
    return path.replace("{lake}", config.lake).replace("{data}", config.data)
