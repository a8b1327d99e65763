"""Assigns users to the variants of an experiment, by a salted hash of the user.

The hash is XXH64, of the salt and the key. Spark and this process compute the same hash, so the variant of a
user depends neither on the engine nor on other users. A user is in the treatment if the hash, as a number
from 0 to 1, is smaller than the share.
"""

from __future__ import annotations

from collections.abc import Sequence

from conf.serving_types import ServingExperiment
from scoring.inputs.requests import CONTROL, TREATMENT, VARIANT
from spark.rows import Rows, query, quoted, with_hash

_SALTED, _HASH = "salted", "hashed"


def hash_limit(share: float) -> int:
    """Returns the limit of the hashes of a share: smaller hashes, as int64, are those of the treatment."""
    return min(max(round(share * 2**64), 1), 2**64 - 1) - 2**63


def with_variants(
    rows: Rows, key: str, experiment: ServingExperiment | None, columns: Sequence[str] = ()
) -> Rows:
    """Returns some columns of rows of users, and the column `variant`: `control` or `treatment`.

    Args:
        rows: rows with the column `key`.
        key: the column with the key of the user, a text.
        experiment: the salt and the share. With None, all users are in the control.
        columns: the columns to return; none of them is `variant`. Empty: only the key.
    """
    kept = ", ".join(quoted(name) for name in columns or (key,))
    if experiment is None:
        return query(f"SELECT {kept}, '{CONTROL}' AS {VARIANT} FROM {{rows}}", rows=rows)
    salted = query(
        f"SELECT {kept}, concat('{experiment.salted_prefix}', {quoted(key)}) AS {_SALTED} FROM {{rows}}",
        rows=rows,
    )
    return query(
        f"""
        SELECT {kept}, CASE WHEN {_HASH} < {hash_limit(experiment.share)} THEN '{TREATMENT}'
            ELSE '{CONTROL}' END AS {VARIANT}
        FROM {{hashed}}
        """,
        hashed=with_hash(salted, _SALTED, _HASH),
    )
