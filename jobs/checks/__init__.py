"""Checks that refuse a configuration before any job has worked.

Every job calls `check_config`. Jobs that train, or make features for a training, call `check_training`. A job
that starts a whole run calls `check_tables` and `check_sinks`, and also `check_lists` if the run trains.
"""

from jobs.checks.config_checks import check_config, check_lists, check_training
from jobs.checks.external_checks import check_sinks, check_tables

__all__ = ["check_config", "check_lists", "check_sinks", "check_tables", "check_training"]
