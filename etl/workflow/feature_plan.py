"""The plan of a run: its configuration after build_features has resolved and checked it.

The plan also says which tables of Spark's catalogue the run copies, and for which days.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Any, Literal

from conf.errors import ConfigError
from conf.names import SPARK_TABLE, column_name, equal_without_case, fits_column
from conf.raw_types import RawTable
from conf.types import LIST_COLUMNS, RESERVED, Config, FeatureGroup, History, JoinedTable
from etl.operators.categorify import Categorify
from etl.operators.join_external import JoinExternal
from etl.ops import (
    FrameOperator,
    RowChanger,
    RowFilter,
    Type,
    column_operator,
    frame_operator_from_config,
    operator_digests,
)
from etl.ops.base import NUMBERS, Engine, choose_engine
from etl.ops.keyed import table_name
from etl.ops.tables import RARE, VOCABULARY
from etl.raw.erased_users import ERASED
from etl.raw.files import ALL_DAYS, is_by_day
from etl.raw.layout_digest import GROUP_METHOD, METHOD, VALUES_METHOD, layout_digest
from etl.raw.row_rules import reasons_left_out
from etl.raw.splits import CUT, DRAW
from etl.workflow.chains import Chain, bind_group, chains_of
from storage.feature_spec import EVENT_TIME, LABEL, WEIGHT, raw_keys
from storage.manifest import digest_of

# The rule that divides a day into train, validation and test rows. With the rule `day`, all rows of a day are
# in one split. The other rules use the position of a row in the log, its time, or the order of the rows of
# its user.
Division = Literal["day", "position", "time", "user"]
_COUNTED = ("int", "float", "string")


@dataclass(frozen=True)
class FeaturePlan:
    """A resolved configuration. It describes everything that build_features does to raw rows.

    A stage of the run resolves its configuration with `plan_of`, and passes the plan to the functions that it
    calls. Which days a run reads depends on the logs that exist (etl.passes.raw_days).

    Attributes:
        config: the configuration of the run.
        filters: operators of `prepare` that drop rows. They run before all other operators of `prepare`.
        changers: operators of `prepare` that add columns or combine rows, in the order of the configuration.
        columns: the columns after the operators `changers`, as a mapping of names to types.
        chains: the chains that compute the features.
        features: names of the features, in the order of the FeatureSpec. A fit may remove some features.
        engine: whether tasks (`arrow`) or Spark frames (`sql`) compute the features.
        division: the rule that divides a day into splits.
        layout: digest of the rules by which the log and the tables of users and items are parsed.
        methods: versions of the methods that prepare rows, as `preparation` returns them.
    """

    config: Config
    filters: tuple[RowFilter, ...]
    changers: tuple[RowChanger, ...]
    columns: Mapping[str, Type]
    chains: tuple[Chain, ...]
    features: tuple[str, ...]
    engine: Engine
    division: Division
    layout: str
    methods: Mapping[str, str]

    @property
    def keeps_rows(self) -> bool:
        """Returns whether every row that passes the filters becomes exactly one prepared row."""
        return not any(changer.name == "groupby" for changer in self.changers)

    @property
    def is_divided(self) -> bool:
        """Returns whether one day has rows of several splits. Otherwise, each day belongs to one split."""
        return self.division != "day"

    @cached_property
    def fixed_columns(self) -> tuple[str, ...]:
        """Returns the columns that the rules of the log compute for all rows: keys, time, label, weight."""
        log = self.config.log
        times = [EVENT_TIME] if log.event_time else []
        weights = [WEIGHT] if log.label.weights is not None else []
        return (*raw_keys(self.config.keys), *times, LABEL, *weights)

    @cached_property
    def counted_columns(self) -> tuple[str, ...]:
        """Returns the columns whose values are counted: inputs of features, except lists."""
        inputs = {name for chain in self.chains for name in chain.inputs}
        return tuple(name for name, kind in self.columns.items() if name in inputs and kind in _COUNTED)

    @cached_property
    def preparations(self) -> tuple[str, ...]:
        """Returns the steps that prepare rows before values are counted and features are computed.

        Attributes, last values, negatives, histories and positions are added to rows, and operators may
        change rows. A split by time needs all rows of a day together. A split by the rows of each user needs
        all rows of a user. The result is empty if the rows of the log need no preparation.
        """
        config = self.config
        applies = {
            "histories": config.history is not None,
            "negatives": config.negatives is not None,
            "positions": config.serving.row_column is not None,
            "table of users": config.users is not None,
            "table of items": config.items is not None,
            "last values": config.last_values is not None,
            **{f"`{changer.name}`": True for changer in self.changers},
            "split of the rows of each user": self.division == "user",
            "split by event time": self.division == "time",
        }
        return tuple(name for name, needed in applies.items() if needed)

    @cached_property
    def reasons_left_out(self) -> tuple[str, ...]:
        """Returns the reasons for which rows are left out without being quarantined.

        Such rows are rows of events that `log.label` does not list, rows that operators of `prepare` drop,
        and rows of erased users. If the configuration leaves out rows without a user, these are included too.
        """
        others = reasons_left_out(self.config.log.label, self.config.keys)
        return (*others, *(operator.reason for operator in self.filters), ERASED)

    @cached_property
    def external_tables(self) -> dict[str, JoinedTable]:
        """Returns the tables that `join_external` reads. The key of a table is a text that identifies it."""
        operators = [(step, step.operator) for chain in self.chains for step in chain.steps]
        return {
            f"join_external.path={operator.path}": operator.source(step)[0]
            for step, operator in operators
            if isinstance(operator, JoinExternal)
        }

    def raw_columns(self, wanted: Collection[str], *, everything: bool = False) -> tuple[str, ...]:
        """Returns `fixed_columns` and the other columns of the log that are in `wanted`.

        If `everything` is true, the result has all other columns of the log.
        """
        fixed = self.fixed_columns
        names = [name for name in self.config.log.names if everything or name in wanted]
        return (*fixed, *(name for name in names if name not in fixed))


def plan_of(config: Config) -> FeaturePlan:
    """Resolves a configuration.

    Raises:
        ConfigError: the parts of the configuration are not consistent. For example, an operator is unknown, a
            column has a wrong type, a feature contains the label, or two features have the same name.
    """
    columns: dict[str, Type] = {}
    for table in (config.log, config.users, config.items):
        columns |= table.types if table else {}
    columns |= config.log.types  # Key columns have the types of the log.
    if config.history:
        columns |= history_types(config.history)
    if config.last_values:
        types = config.log.types
        columns |= {name: types[column] for name, column in config.last_values.new_columns.items()}
    if config.serving.row_column:
        columns[config.serving.row_column] = "int"
    operators = [frame_operator_from_config(entry) for entry in config.prepare]
    filters = tuple(operator for operator in operators if isinstance(operator, RowFilter))
    changers = tuple(operator for operator in operators if isinstance(operator, RowChanger))
    log_columns = config.log.types
    for row_filter in filters:
        row_filter.bind(log_columns)
    _require_values_of_log_rows(config, changers, columns)
    label = config.log.label.column
    secret = {LABEL} if label is None else {LABEL, label}
    secret = _computed_from(secret, changers, columns) - secret
    before = columns
    for changer in changers:
        columns = dict(changer.bind(columns))
    require_keys(config, changers, columns)
    chains, features = plan_features(config.features, columns, label)
    _require_no_changed_label(secret, chains)
    _require_times(config, changers, before, chains)
    require_scopes(config, features, chains)
    require_free_weight(config, columns, chains)
    return FeaturePlan(
        config,
        filters,
        changers,
        columns,
        chains,
        features,
        engine=choose_engine(config.workflow.engine),
        division=_division(config),
        layout=layout_digest(config),
        methods=preparation(config),
    )


def _division(config: Config) -> Division:
    if config.split.by == "day":
        return "day"
    if config.split.by == "leave_last_out":
        return "user"
    return "position" if config.log.event_time is None else "time"


def plan_features(
    groups: Sequence[FeatureGroup], columns: Mapping[str, Type], label: str | None
) -> tuple[tuple[Chain, ...], tuple[str, ...]]:
    """Returns the chains of feature groups, and the names of their features in the order of the groups.

    Args:
        groups: the section `features` of the configuration.
        columns: maps each raw column to its type.
        label: the raw column with the label; None if the log has none.

    Raises:
        ConfigError: see `plan_of`.
    """
    chains = tuple(chain for group in groups for chain in chains_of(group, columns))
    features = tuple(name for group in groups for name in bind_group(group, columns).outputs)
    require_chains(columns, features, chains, label)
    return chains, features


# The functions below check that the parts of a configuration are consistent: keys, names, tables and scopes.

Chains = tuple[Chain, ...]


def require_keys(config: Config, changers: tuple[FrameOperator, ...], columns: Mapping[str, Type]) -> None:
    """Raises ConfigError if a key column does not exist after the operators of `prepare`."""
    keys = config.keys.columns if config.keys else []
    lost = [name for name in keys if name not in columns]
    if lost and changers:
        raise ConfigError(
            f"`prepare` drops the key columns {lost}", "add these columns to `by` of `groupby` in `prepare`"
        )


def require_chains(
    columns: Mapping[str, Type], features: tuple[str, ...], chains: Chains, label: str | None
) -> None:
    """Checks features, and the chains that compute them.

    Args:
        columns: maps each raw column to its type.
        features: the names of the features.
        chains: the chains that compute the features.
        label: the raw column with the label; None if the log has none.

    Raises:
        ConfigError: a name is not allowed or not unique, a feature contains the label, or an operator reads
            a column of a wrong type.
    """
    _require_names(columns, chains)
    _require_unique(features, chains)
    _require_distinct_without_case(columns, features)
    _require_tables(chains)
    _require_reads(chains, columns)
    _require_no_label(label, chains)
    _require_free_names(chains)


def _require_names(columns: Mapping[str, Type], chains: Chains) -> None:
    """Raises ConfigError if a name cannot be used for a column, or as a part of a file name."""
    outputs = [name for chain in chains for step in chain.steps for name in step.outputs]
    for name in (*columns, *outputs):
        try:
            column_name(name)
        except ValueError as error:
            raise ConfigError(
                f"an operator would add a column {name!r}: {error}", "give this column another name"
            ) from error


def require_free_weight(config: Config, columns: Mapping[str, Type], chains: Chains) -> None:
    """Raises ConfigError if rows have weights and an operator adds a column with the same name."""
    steps = {name for chain in chains for step in chain.steps for name in step.outputs}
    if config.log.label.weights is not None and WEIGHT in {*columns, *steps}:
        raise ConfigError(
            f"an operator would add a column {WEIGHT!r}, which is the internal column with the weights of "
            "log.label.weights",
            "give this column another name",
        )


def _require_no_label(label: str | None, chains: Chains) -> None:
    """Raises ConfigError if a feature reads the label, or a raw column with the name of the label.

    Also raises ConfigError if an operator computes statistics of the label, because the statistics of a
    training row would contain the label of this row. Operators that are computed out of fold may read the
    label.
    """
    for chain in chains:
        labels = [name for name in chain.inputs if name in (LABEL, label)]
        if labels:
            raise ConfigError(
                f"features are computed from {labels}, which is the label that a model must predict",
                "remove the column from features; if it is another column with the name of the label, write "
                "a new `name` in log.columns, and the column's name in the raw log as `source`",
            )
    for operator in (step.operator for chain in chains for step in chain.steps):
        measured = [name for name in operator.reads() if name in (LABEL, label)]
        if measured and not column_operator(operator.name)[1].out_of_fold:
            raise ConfigError(
                f"{operator.name} would compute features of a row from the label {measured[0]!r} of this row",
                "use target_encoding, which encodes a row without the labels of the row's own fold",
            )


def _require_no_changed_label(secret: set[str], chains: Chains) -> None:
    """Raises ConfigError if a feature reads a column of `secret`, which `prepare` computes from the label."""
    read = {name for chain in chains for name in chain.inputs}
    read |= {name for chain in chains for step in chain.steps for name in step.operator.reads()}
    if secret & read:
        raise ConfigError(
            f"features are computed from {sorted(secret & read)}, which operators of `prepare` compute from "
            "the label that a model must predict",
            "remove these columns from features, or remove the label from the parameters of these operators",
        )


def _require_times(
    config: Config, changers: Sequence[RowChanger], columns: Mapping[str, Type], chains: Chains
) -> None:
    """Raises ConfigError if a feature reads a raw column `event_time` that differs from the internal column.

    The internal column `event_time` has times in µs. It replaces a raw column of this name; only filters read
    the raw column. The two columns do not differ if the raw column has timestamps, or integers in µs.
    `columns` maps the columns before the operators of `prepare` to their types.
    """
    event_time = config.log.event_time
    if event_time is None or event_time.column != EVENT_TIME:
        return
    kind = config.log.type_of(EVENT_TIME)
    if kind == "timestamp" or (kind == "int" and event_time.unit == "us"):
        return
    times = {EVENT_TIME}
    for changer in changers:
        before, columns = columns, changer.bind(columns)
        # A key may be a time in any unit, because equal times are equal in every unit.
        keys = set(changer.key_columns())
        times |= {new for new in columns.keys() - before.keys() if times & (set(changer.reads(new)) - keys)}
    read = {name for chain in chains for name in chain.inputs}
    read |= {name for chain in chains for step in chain.steps for name in step.operator.reads()}
    read |= set(config.last_values.columns) if config.last_values else set()
    if times & read:
        raise ConfigError(
            f"features or last_values read {sorted(times & read)}, but the internal column {EVENT_TIME} with "
            f"the time in µs replaces the raw column {EVENT_TIME}, which has other values",
            f"give the raw column another name, such as {{name: time, source: {EVENT_TIME}}} in log.columns, "
            "and write this name in log.event_time.column and where the column is read",
        )


def _computed_from(names: set[str], changers: Sequence[RowChanger], columns: Mapping[str, Type]) -> set[str]:
    """Returns `names`, and the columns that `changers` compute from them.

    `columns` maps the columns before the operators to their types.
    """
    computed = set(names)
    for changer in changers:
        before, columns = columns, changer.bind(columns)
        computed |= {new for new in columns.keys() - before.keys() if computed & set(changer.reads(new))}
    return computed


def _require_values_of_log_rows(
    config: Config, changers: Sequence[RowChanger], columns: Mapping[str, Type]
) -> None:
    """Raises ConfigError if drawn negatives cannot have the values that an operator computes for log rows.

    A drawn negative has the user and the time of its positive row, but another item. `columns` maps the
    columns before the operators to their types.
    """
    if config.negatives is None or config.keys is None:
        return
    of_items = {config.keys.item, *(config.items.names if config.items else ())}
    of_items |= set(config.last_values.new_columns) if config.last_values else set()
    of_items |= {config.serving.row_column} if config.serving.row_column else set()
    for number, changer in enumerate(changers):
        if not changer.of_log_rows:
            continue
        if any(earlier.name == "groupby" for earlier in changers[:number]):
            raise ConfigError(
                f"groupby comes before {changer.name}: a row that `negatives` adds gets the value of "
                f"{changer.name} of its positive row, but groupby may combine this row with other rows",
                f"put {changer.name} before groupby, or remove the section negatives",
            )
        before: Mapping[str, Type] = columns
        for earlier in changers[:number]:
            before = earlier.bind(before)
        added = changer.bind(before).keys() - before.keys()
        read = {name for new in added for name in changer.reads(new)}
        wrong = sorted(read & _computed_from(of_items, changers[:number], columns))
        if wrong:
            raise ConfigError(
                f"{changer.name} reads {wrong}, which depend on the item of a row: `negatives` puts another "
                "item into a copy of a positive row, but the copy keeps the values that this operator "
                "computes for the positive row",
                f"remove these columns from {changer.name}, or remove the section negatives",
            )


def history_types(history: History) -> dict[str, Type]:
    """Returns the type of each column that the section `history` adds."""
    types: dict[str, Type] = {history.column: "strings"}
    return types if history.ages is None else {**types, history.ages: "ints"}


def require_scopes(config: Config, features: tuple[str, ...], chains: Chains) -> None:
    """Raises ConfigError if a scope (a list of features) contains a feature that is not allowed in it.

    If the section `users` is set, features in the scope `user` must be computed from columns of this table.
    In the same way, the section `items` restricts the features in the scope `item`. If the section
    `negatives` is set, features in the scope `item` must not read columns of the log. Features of users and
    items must not read the position of an impression, because it is different for each row of a user or item.
    Features in the scope `item` may read the columns of `last_values`, but then no other column of the log.
    """
    scopes = config.scopes
    unknown = [name for name in (*scopes.user, *scopes.item, *scopes.context) if name not in features]
    if unknown:
        raise ConfigError(
            f"the section `scopes` lists {unknown}, which are not features",
            f"list only features; the features are {list(features)}",
        )
    for side, names in (("user", scopes.user), ("item", scopes.item)):
        taken = [name for name in names if name.lower() in LIST_COLUMNS[side]]
        if taken:
            raise ConfigError(
                f"scopes.{side} lists {taken}, but the tables from which lists are made have internal "
                f"columns with these names: {list(LIST_COLUMNS[side])}",
                "give these features other names with the operator `rename`, or write a new `name` in "
                "`columns` of the raw table and the column's name in the raw files as `source`",
            )
    sources = {name: chain.inputs for chain in chains for name in chain.outputs}
    histories = set(config.history.columns) if config.history else set[str]()
    values = set(config.last_values.new_columns) if config.last_values else set[str]()
    for side, table, names in (("user", config.users, scopes.user), ("item", config.items, scopes.item)):
        known = set(table.names) if table else set()
        known |= histories if side == "user" else values
        elsewhere = [name for name in names if table and not set(sources[name]) <= known]
        if elsewhere:
            raise ConfigError(
                f"scopes.{side} lists {elsewhere}, which are computed from columns that are not in "
                f"{side}s.columns",
                f"compute these features from columns in {side}s.columns, or list them in another scope",
            )
    wrong = [name for name in (*scopes.item, *scopes.context) if histories & set(sources[name])]
    if wrong:
        raise ConfigError(
            f"scopes.item and scopes.context list {wrong}, which are computed from the history of the user "
            f"({', '.join(sorted(histories))})",
            "list these features in scopes.user",
        )
    _require_values_of_items(config, sources, values)
    _require_positions_in_context(config, sources)
    if config.negatives and config.keys:
        log_columns = set(config.log.names) - {config.keys.item}
        wrong = [name for name in scopes.item if set(sources[name]) & log_columns]
        if wrong:
            raise ConfigError(
                f"`negatives` puts another item into a row, but scopes.item lists {wrong}, which are "
                "computed from columns of the log: these columns describe the item of the log row, so they "
                "would be wrong for the drawn item",
                "declare these columns in items.columns, and deliver a table of items",
            )


def _require_values_of_items(
    config: Config, sources: Mapping[str, tuple[str, ...]], values: set[str]
) -> None:
    """Raises ConfigError if a feature of users or of the context is computed from last values of items.

    Also raises ConfigError if a feature of items is computed from last values and from columns of the log,
    because these values come from different events. Without a table of items, an item in a list is scored
    with its last values up to the run date, but with the other columns of its latest row in the log.

    Args:
        config: the configuration of the run.
        sources: maps each feature to the raw columns from which it is computed.
        values: the columns of `last_values`.
    """
    wrong = [name for name in (*config.scopes.user, *config.scopes.context) if values & set(sources[name])]
    if wrong:
        raise ConfigError(
            f"scopes.user and scopes.context list {wrong}, which are computed from the last values of items "
            f"({', '.join(sorted(values))})",
            "list these features in scopes.item, or in no scope if they also depend on the user",
        )
    log_columns = set(config.log.names)
    mixed = [
        name
        for name in config.scopes.item
        if values & set(sources[name]) and log_columns & set(sources[name])
    ]
    if mixed:
        raise ConfigError(
            f"scopes.item lists {mixed}, which are computed from the last values of items "
            f"({', '.join(sorted(values))}) and from columns of the log",
            "compute these features only from columns of last_values and of items.columns, or add the "
            "columns of the log to last_values.columns",
        )


def _require_positions_in_context(config: Config, sources: Mapping[str, tuple[str, ...]]) -> None:
    """Raises ConfigError if a feature of users or items is computed from the position of an impression.

    `sources` maps each feature to the raw columns from which it is computed.
    """
    column = config.serving.row_column
    wrong = [name for name in (*config.scopes.user, *config.scopes.item) if column in sources[name]]
    if wrong:
        raise ConfigError(
            f"scopes.user and scopes.item list {wrong}, which are computed from {column} "
            "(serving.impressions.row_column), the position of one impression",
            f"list these features in scopes.context, and set score.context.{column} to the position with "
            "which lists are scored, such as 1",
        )


def _require_free_names(chains: Chains) -> None:
    """Raises ConfigError if an output of a step has the name of a column that every feature table has."""
    outputs = {
        name for chain in chains for name in (*chain.outputs, *(n for s in chain.steps for n in s.outputs))
    }
    wrong = sorted(name for name in outputs if name.casefold() in RESERVED or not fits_column(name))
    if wrong:
        raise ConfigError(
            f"features would add columns named {wrong}, which is not allowed: {list(RESERVED)} are columns "
            "of every feature table, and a name must not contain a dot or a backtick, or begin with an "
            "underscore",
            "give these columns other names with the operator `rename`, or write a new `name` in log.columns "
            "and the column's name in the raw log as `source`",
        )


def _require_unique(features: tuple[str, ...], chains: Chains) -> None:
    """Raises ConfigError if two features, or two vocabularies that are not shared, have the same name."""
    repeated = sorted({name for name in features if features.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"two features have the same name: {repeated}",
            "give one of the two another name with the operator `rename`",
        )
    seen: dict[str, Categorify] = {}
    counted: set[str] = set()
    for step in (step for chain in chains for step in chain.steps):
        operator = step.operator
        if not isinstance(operator, Categorify):
            continue
        name = operator.vocabulary(step)
        if name in seen and (operator.share is None or seen[name].rule != operator.rule):
            raise ConfigError(
                f"two vocabularies would be named {name}",
                "put `rename` before `categorify` in one of the two groups, or let both groups share a "
                "vocabulary: write categorify with `share` and equal parameters in both",
            )
        if name in (VOCABULARY, RARE):
            raise ConfigError(
                f"a vocabulary cannot be named {name}: a table of every workflow has this name",
                "put `rename` before `categorify`, or set `share` to another name",
            )
        seen[name] = operator
        counted |= {name} if operator.counts or operator.values else set()
    if set(seen) - counted:
        raise ConfigError(
            f"no column is counted for the vocabularies {sorted(set(seen) - counted)}, because all their "
            "columns have counts=false",
            "remove counts=false from categorify of one column that shares this vocabulary",
        )


def _require_distinct_without_case(columns: Mapping[str, Type], features: tuple[str, ...]) -> None:
    """Raises ConfigError if the names of two columns, or of two features, differ only in case."""
    for what, names in (("columns", columns), ("features", features)):
        if same := equal_without_case(names):
            raise ConfigError(
                f"the {what} {same} have names that differ only in upper and lower case, which SQL ignores",
                f"write another `name` for {same[1]!r} in `columns` of its table, and the column's name in "
                f"the raw files as `source`: {{name: {same[1]}_2, source: {same[1]}}}; the operator `rename` "
                "also gives features other names",
            )


def _require_tables(chains: Chains) -> None:
    """Raises ConfigError if two different tables of statistics by key would have the same name.

    Two steps may share one table if the same operators compute it from the same columns.
    """
    seen: dict[str, Any] = {}
    for chain in chains:
        for position, step in enumerate(chain.steps):
            if step.operator.needs in ("groups", "external"):
                definition = (chain.inputs, chain.steps[: position + 1])
                if seen.setdefault(table_name(step), definition) != definition:
                    raise ConfigError(
                        f"two tables of {step.operator.name} would be named {table_name(step)}",
                        f"put `rename` before {step.operator.name} in one of the two groups, so that "
                        f"{list(step.inputs)} have other names there",
                    )


def _require_reads(chains: Chains, columns: Mapping[str, Type]) -> None:
    """Raises ConfigError if an operator computes statistics of a raw column whose values are not numbers."""
    for operator in (step.operator for chain in chains for step in chain.steps):
        wrong = {name: columns.get(name) for name in operator.reads() if columns.get(name) not in NUMBERS}
        if wrong:
            raise ConfigError(
                f"{operator.name} needs columns of type {' or '.join(NUMBERS)}; these do not fit: "
                + ", ".join(f"{name} ({kind or 'not a column'})" for name, kind in wrong.items()),
                "choose from the columns "
                f"{sorted(name for name, kind in columns.items() if kind in NUMBERS)}",
            )


# The functions below find the features in which unknown values have the id OOV_ID.


def features_with_oov_id(feature_plan: FeaturePlan) -> list[str]:
    """Returns the features, in the plan's order, whose vocabulary gives OOV_ID to unknown values.

    The ids come from `categorify`. With `oov_buckets` above 1, unknown values have several ids, so such a
    feature is not in the result.
    """
    chosen = {name for chain in feature_plan.chains if _has_oov_id(chain) for name in chain.outputs}
    return [name for name in feature_plan.features if name in chosen]


def id_feature_of(feature_plan: FeaturePlan, column: str) -> str | None:
    """Returns the feature that contains the id of each value of a raw column, such as the user.

    The feature must be computed from this column alone, and have OOV_ID for unknown values. Returns None if
    there is no such feature.
    """
    for chain in feature_plan.chains:
        if chain.inputs == (column,) and chain.kind == "categorical" and _has_oov_id(chain):
            return chain.outputs[0]
    return None


def _has_oov_id(chain: Chain) -> bool:
    makers = [step.operator for step in chain.steps if step.operator.makes_ids]
    return bool(makers) and all(
        isinstance(operator, Categorify) and operator.oov_buckets == 1 for operator in makers
    )


# The code below returns the versions of the methods that prepare rows. Everything that is computed from
# prepared rows has these versions as inputs.

# Part of the digest of prepared rows. Change this text if the code computes other positions for the same log.
_POSITIONS = "last impression before the row, or smallest position of the day"


# Change this text if `difference_lag` computes other differences for the same log and the same negatives.
_DIFFERENCES = "of log rows, and for negatives of their positive rows"


def preparation(config: Config) -> dict[str, str]:
    """Returns the versions of the methods that draw negatives, divide rows into splits and add columns.

    The added columns are histories, last values and positions of impressions. The result also contains the
    digest of the operators of `prepare` that other packages add.

    The result is part of the inputs of workflows, profiles and feature partitions. So if a method changes,
    jobs compute all of these again. The result contains only the methods that the configuration uses.
    Divisions by time and by user have no version, because their methods never changed. If the result is
    empty, partitions of earlier releases remain valid.
    """
    by_position = config.split.by == "fraction" and config.log.event_time is None
    names = [entry if isinstance(entry, str) else next(iter(entry)) for entry in config.prepare]
    operators = operator_digests(names)
    method = GROUP_METHOD if config.keys and config.keys.group else METHOD
    history = _settings_of(config.history) if config.history else {}
    values = config.last_values.model_dump() if config.last_values else {}
    positions = _positions_method(config)
    return {
        **({"negatives": DRAW} if config.negatives else {}),
        **({"difference_lag": _DIFFERENCES} if config.negatives and "difference_lag" in names else {}),
        **({"split": CUT} if by_position else {}),
        **({"history": f"{method}, {digest_of(history)}"} if history else {}),
        **({"last_values": f"{VALUES_METHOD}, {digest_of(values)}"} if values else {}),
        **({"shown_positions": positions} if positions else {}),
        **({"operators": digest_of(operators)} if operators else {}),
    }


def _settings_of(history: History) -> dict[str, Any]:
    """Returns the settings of the section `history`, without `ages` if it is not set.

    So the digest is the same as in earlier releases, which had no setting `ages`.
    """
    return history.model_dump(exclude={"ages"} if history.ages is None else None)


def _positions_method(config: Config) -> str | None:
    """Returns the version of the method that adds positions, with a digest of its settings.

    Returns None if the configuration adds no positions. The digest does not include the unit of the times,
    because the unit is a setting of the click log.
    """
    settings = config.serving.row_positions
    if settings is None:
        return None
    names = {"format", "separator", "user", "item", "position", "time", "row_column"}
    names |= {"null_values", "decimal_separator", "encoding", "time_zone", "columns"}
    # Earlier releases included this default of the separator in the digest, so it must stay.
    values = {"separator": ",", **settings.model_dump(include=names)}
    return f"{_POSITIONS}, {digest_of(values)}"


# The code below lists the tables of Spark's catalogue in a configuration, and the days that runs read.

LOG, IMPRESSIONS = "log.path", "serving.impressions.path"


@dataclass(frozen=True)
class CopiedTable:
    """A raw table whose rows Spark copies into the lake.

    Attributes:
        key: the configuration key of the table's path.
        table: the settings of the table.
        user: the name that the column with the ids of users has in the table; None if there is no such
            column.
    """

    key: str
    table: RawTable
    user: str | None = None


def copied_tables(plan: FeaturePlan) -> list[CopiedTable]:
    """Returns the raw tables of the configuration that are tables of Spark's catalogue."""
    return [one for one in _all_tables(plan) if one.table.format == SPARK_TABLE]


def copied_days(config: Config, table: CopiedTable, run_date: str) -> list[str]:
    """Returns the days of a table that a run of `build_features` may read, oldest first.

    If the table is not read by day, the list contains only ALL_DAYS.
    """
    if not is_by_day(table.table):
        return [ALL_DAYS]
    split, count = config.split, 1
    if split.by == "day":
        count = split.train_days + split.validation_days + split.test_days
        count += config.days_before if table.key == LOG else 0
    last = date.fromisoformat(run_date)
    return [(last - timedelta(days=back)).isoformat() for back in reversed(range(count))]


def _all_tables(plan: FeaturePlan) -> Iterator[CopiedTable]:
    config = plan.config
    keys, candidates, impressions = config.keys, config.candidates, config.serving.impressions
    user = keys.user if keys else None
    yield CopiedTable(LOG, config.log, _source(config.log, user))
    if config.users:
        yield CopiedTable("users.path", config.users, _source(config.users, user))
    if config.items:
        yield CopiedTable("items.path", config.items)
    if impressions:
        yield CopiedTable(IMPRESSIONS, impressions, _source(impressions, impressions.user))
    if candidates.user_attributes:
        attributes = candidates.user_attributes
        yield CopiedTable("candidates.user_attributes.path", attributes, _source(attributes, attributes.key))
    for index, table in enumerate(candidates.filters):
        yield CopiedTable(f"candidates.filters.{index}.path", table)
    for key, external in plan.external_tables.items():
        yield CopiedTable(key, external)


def _source(table: RawTable, name: str | None) -> str | None:
    """Returns the name that a column of the configuration has in the table."""
    return next((column.source_name for column in table.columns if column.name == name), name)
