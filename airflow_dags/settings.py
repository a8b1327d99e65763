"""The Airflow Variable `nightrank`, a JSON object: where Nightrank is installed and how its jobs are started.

Each task reads the Variable when it starts. So a change applies to the next task, and DAGs need not be parsed
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from airflow.sdk import Variable
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_dags.overrides import DEFAULT_KEYS

VARIABLE = "nightrank"
SPARK_CONNECTION = "spark_default"
POOL = "nightrank_spark"
_KEYS = {"home", "config", "profiles", "set", "spark_submit", "environment", "param_keys", "check_node"}


@dataclass(frozen=True)
class Settings:
    """The values of the keys of the Airflow Variable `nightrank`.

    Attributes:
        home: the folder with `jobs/` and `conf/`. Jobs run in this folder, so paths may be relative to it.
        config: the YAML configuration file of the jobs.
        profiles: maps the name of a job to its Spark properties file; `default` is for all other jobs.
        overrides: `--set` values of every job (key `set` of the Variable).
        spark_submit: the program that starts jobs.
        environment: environment variables of the jobs, added to those of Airflow.
        param_keys: the keys that the Param `set` of a run may change (airflow_dags/overrides.py).
        check_node: whether each task first checks that its worker can run the job.
    """

    home: str
    config: str
    profiles: Mapping[str, str]
    overrides: tuple[str, ...]
    spark_submit: str
    environment: Mapping[str, str]
    param_keys: tuple[str, ...] = DEFAULT_KEYS
    check_node: bool = False

    def profile(self, job: str) -> str:
        """Returns the Spark profile of a job."""
        return self.profiles.get(job, self.profiles["default"])


def read_settings() -> Settings:
    """Returns the current settings in the Airflow Variable `nightrank`.

    Raises:
        AirflowFailException: the Variable is missing, has unknown or missing keys, or names a path that does
            not exist. Airflow does not retry the task.
    """
    values = Variable.get(VARIABLE, default=None, deserialize_json=True)
    if values is None:
        raise AirflowFailException(
            f"the Airflow Variable {VARIABLE!r} does not exist\n"
            "  what to do: create it as docs/airflow.md says"
        )
    return settings_of(values)


def settings_of(values: Any) -> Settings:
    """Returns the settings in a JSON value of the Variable. Raises the same errors as `read_settings`."""
    if not isinstance(values, dict):
        raise _wrong(f"is not a JSON object: {values!r}")
    if unknown := sorted(set(values) - _KEYS):
        raise _wrong(f"has unknown keys {unknown}; known: {sorted(_KEYS)}")
    if missing := sorted({"home", "config", "profiles"} - set(values)):
        raise _wrong(f"lacks the keys {missing}")
    _check_types(values)
    home = str(values["home"])
    if not (Path(home) / "jobs").is_dir():
        raise _wrong(f"names home={home}, which has no folder `jobs` on this worker")
    submit = str(values.get("spark_submit", f"{home}/.venv/bin/spark-submit"))
    if which(submit) is None:
        raise _wrong(f"names spark_submit={submit}, which is not a program on this worker")
    named = {name: str(value) for name, value in values.get("environment", {}).items()}
    return Settings(
        home,
        str(values["config"]),
        values["profiles"],
        tuple(values.get("set", [])),
        submit,
        named,
        tuple(values.get("param_keys", DEFAULT_KEYS)),
        values.get("check_node", False),
    )


def _check_types(values: Mapping[str, Any]) -> None:
    """Raises the error of `read_settings` if a value of the Variable has the wrong type."""
    profiles, overrides = values["profiles"], values.get("set", [])
    if not isinstance(profiles, dict) or "default" not in profiles:
        raise _wrong(f'needs profiles={{"default": "conf/spark/….conf"}}, and has {profiles!r}')
    if not _are_texts(overrides):
        raise _wrong(f'needs set=["a.b=value", …], and has {overrides!r}')
    param_keys = values.get("param_keys", list(DEFAULT_KEYS))
    if not _are_texts(param_keys):
        raise _wrong(f'needs param_keys=["a.b", "a.", …], and has {param_keys!r}')
    environment, check_node = values.get("environment", {}), values.get("check_node", False)
    if not isinstance(environment, dict):
        raise _wrong(f"needs environment={{name: value}}, and has {environment!r}")
    if not isinstance(check_node, bool):
        raise _wrong(f"needs check_node=true or false, and has {check_node!r}")


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def require_spark_connection() -> None:
    """Raises AirflowFailException if the Spark connection is missing.

    Without the connection, Airflow's Spark provider would submit jobs to YARN.
    """
    try:
        BaseHook.get_connection(SPARK_CONNECTION)
    except AirflowException as error:
        raise AirflowFailException(
            f"the Airflow connection {SPARK_CONNECTION!r} does not exist, "
            "so no Spark master is set for the jobs\n"
            f'  what to do: create it with type spark and the master as host: {{"conn_type": "spark", "host": "spark://…:7077"}}'
        ) from error


def _wrong(what: str) -> AirflowFailException:
    return AirflowFailException(
        f"the Airflow Variable {VARIABLE!r} {what}\n"
        "  what to do: correct the Variable; docs/airflow.md explains its keys"
    )
