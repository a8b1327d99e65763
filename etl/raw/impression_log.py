"""Finds the log of what was shown to users on one day (`serving.impressions`).

build_features adds positions of this log to the rows of the click log if `row_column` is set. Then the log is
an input of everything that is computed from these rows. etl/readers/impressions.py reads the log.
"""

from __future__ import annotations

from conf.types import Config
from etl.raw.files import RawFiles, find_raw
from storage.manifest import digest_of


def impressions_of(config: Config, raw: RawFiles) -> RawFiles | None:
    """Returns the files with the impressions of the day of a click log.

    Returns None if there are none, or if their positions are not a column of the click log's rows.

    Args:
        config: the configuration.
        raw: the files of the click log. Its recorder records the impressions as an input of the run.
    """
    settings = config.serving.row_positions
    return find_raw(config, settings, raw.dt, raw.recorder) if settings else None


def impression_inputs(config: Config, raw: RawFiles) -> dict[str, str]:
    """Returns the input `impressions` of everything that is computed from the prepared rows of a day.

    It is the digest of the day's impressions, or `none` without a file. The result is empty if their
    positions are not a column of the rows.
    """
    if config.serving.row_column is None:
        return {}
    logged = impressions_of(config, raw)
    return {"impressions": logged.digest if logged else "none"}


def rows_digest(config: Config, raw: RawFiles) -> str:
    """Returns a digest of the files from which the prepared rows of a day are computed.

    It is the digest of the click log unless positions of the impressions are a column of the rows.
    """
    inputs = impression_inputs(config, raw)
    return digest_of([raw.digest, inputs]) if inputs else raw.digest
