"""The keys of the configuration that the Param `set` may change.

Everybody who may trigger a run can set this Param, even people who may not read the lake or the jobs'
credentials. If the Param could change addresses, they could send data and passwords to another place
(`deliver.sinks`, `watch.push_gateway`). If it could change paths, they could read other data (`log.path`,
`lake`) or load other code (`driver_jar`). So the Param may change only keys that affect how a run computes
its results. The key `param_keys` of the Airflow Variable of the dataset replaces the list of allowed keys.
Overrides in the Variable may change any key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

_MOST_TEXT = 10_000  # maximum number of characters of an override

# A name that ends with a dot allows all keys below it, if their values are plain values or lists of plain
# values. Any other name allows exactly that key, with any value.
DEFAULT_KEYS = (
    "candidates.active_days",
    "candidates.exclude_clicked",
    "candidates.max",
    "candidates.repeats",
    "candidates.exclude_events",
    "candidates.splits",
    "gate.",
    "measure.",
    "model.",
    "quality.",
    "score.context.",
    "score.device",
    "score.embeddings",
    "score.k",
    "score.kernels",
    "score.precision",
    "score.rows_per_step",
    "score.rows_split",
    "score.rules.boost.",
    "score.rules.exploration.",
    "score.rules.max_per_category.",
    "score.stop.",
    "split.",
    "train.baselines",
    "train.checkpoint_every_steps",
    "train.clip_norm",
    "train.compile",
    "train.cuda_graphs",
    "train.decay_end_factor",
    "train.decay_power",
    "train.decay_start_share",
    "train.device",
    "train.elastic",
    "train.elastic.",
    "train.embedding_learning_rate",
    "train.embedding_memory",
    "train.embedding_memory_mib",
    "train.embeddings.",
    "train.epochs",
    "train.evaluate_every_steps",
    "train.global_batch_size",
    "train.keep",
    "train.keep_checkpoints",
    "train.kernels",
    "train.l2",
    "train.learning_rate",
    "train.log_every_steps",
    "train.loss",
    "train.max_softmax_items",
    "train.negatives",
    "train.negatives.",
    "train.num_ranks",
    "train.num_shards",
    "train.precision",
    "train.profile",
    "train.profile.",
    "train.reading.device_mib",
    "train.reading.pool_rows",
    "train.reading.pools",
    "train.reading.read_ahead_mib",
    "train.reading.staging_mib",
    "train.reading.threads",
    "train.refit",
    "train.retrain.",
    "train.seed",
    "train.shuffle",
    "train.start_timeout_s",
    "train.stop_at",
    "train.stop_at.",
    "train.unknown_share.",
    "train.warmup_share",
    "workflow.",
)


def refusal(overrides: Sequence[Any], allowed: Sequence[str], variable: str = "nightrank") -> str | None:
    """Returns the error message for the first override that is not allowed; None if all are allowed.

    Args:
        overrides: the values of the Param `set`.
        allowed: the keys that may change.
        variable: the name of the Airflow Variable of the dataset, for the message.
    """
    for override in overrides:
        if len(str(override)) > _MOST_TEXT:
            return (
                f"the Param `set` contains {str(override)[:100]!r}…, which has more than {_MOST_TEXT:,} "
                "characters\n  what to do: set such a value in the configuration file"
            )
        key, separator, text = str(override).partition("=")
        if not separator or not key:
            return (
                f"the Param `set` contains {override!r}, which is not of the form a.b=value\n"
                "  what to do: write section.key=value"
            )
        if not is_allowed(key, allowed):
            return (
                f"the Param `set` must not change {key}: allowed keys are {', '.join(allowed) or 'none'}\n"
                f"  what to do: set {key} in the configuration file, "
                f"or in the Variable `{variable}` (keys `set` and `param_keys`)"
            )
        if key not in allowed and (problem := _not_plain(text)):
            return (
                f"the Param `set` sets {key} to {problem}; only plain values and lists of them are allowed\n"
                f"  what to do: set each key below {key} separately, as in a.b=value"
            )
    return None


def is_allowed(key: str, allowed: Sequence[str]) -> bool:
    """Returns whether `allowed` contains this key, or a prefix of this key that ends with a dot."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in allowed)


def _not_plain(text: str) -> str | None:
    """Returns what is wrong with a value; None if it is a plain value or a list of plain values.

    A plain value is a scalar of YAML, such as a number, a string or a date. So a value that is allowed cannot
    set any keys below its own key.
    """
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"a value that is not YAML ({str(error)[:300]})"
    values = value if isinstance(value, list) else [value]
    return (
        "a mapping or a nested list"
        if any(isinstance(value, dict | list | set) for value in values)
        else None
    )
