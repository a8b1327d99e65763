"""Checks that reject a wrong configuration before a job does any work.

Every job calls `check_config`. Jobs that train, or build features for a training, call `check_training`. Jobs
that start all stages of a run call `check_tables` and `check_sinks`, and `check_lists` if the run trains.
"""

from jobs.checks.config_checks import check_config, check_lists, check_training
from jobs.checks.external_checks import check_sinks, check_tables

__all__ = ["check_config", "check_lists", "check_sinks", "check_tables", "check_training"]
