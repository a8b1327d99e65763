"""The Airflow Variable of a dataset, a JSON object: where Nightrank is installed and how its jobs start.

The Variable is `nightrank`, or `nightrank_<name>` for a further dataset (dataset.py).

Each task reads the Variable when it starts. So a change applies to the next task, and DAGs need not be parsed
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Any

from airflow.sdk import Variable
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_dags.dataset import VARIABLE
from airflow_dags.overrides import DEFAULT_KEYS
from airflow_dags.runner_settings import LIVY, SUBMIT, RunnerSettings, SettingError, runner_settings_of

SPARK_CONNECTION = "spark_default"
_KEYS = {
    "home",
    "config",
    "profiles",
    "set",
    "spark_submit",
    "spark_connection",
    "environment",
    "param_keys",
    "check_node",
    "runner",
}


@dataclass(frozen=True)
class Settings:
    """The settings that the Airflow Variable of a dataset contains.

    Attributes:
        home: the folder with `jobs/` and `conf/`. Jobs run in this folder, so paths may be relative to it.
        config: the YAML configuration file of the jobs.
        profiles: maps the name of a job to its Spark properties file; `default` is for all other jobs.
        overrides: `--set` values of every job (key `set` of the Variable).
        spark_submit: the program that starts jobs.
        environment: environment variables of the jobs, added to those of Airflow.
        param_keys: the keys that the Param `set` of a run may change (airflow_dags/overrides.py).
        check_node: whether each task first checks that its worker can run the job.
        spark_connection: the id of the Airflow connection whose host is the Spark master.
        runner: how jobs start (runner_settings.py).
        variable: the name of the Airflow Variable.
    """

    home: str
    config: str
    profiles: Mapping[str, str]
    overrides: tuple[str, ...]
    spark_submit: str
    environment: Mapping[str, str]
    param_keys: tuple[str, ...] = DEFAULT_KEYS
    check_node: bool = False
    spark_connection: str = SPARK_CONNECTION
    runner: RunnerSettings = field(default_factory=RunnerSettings)
    variable: str = VARIABLE

    def profile(self, job: str) -> str:
        """Returns the Spark profile of a job."""
        return self.profiles.get(job, self.profiles["default"])


def read_settings(variable: str = VARIABLE) -> Settings:
    """Returns the current settings in the Airflow Variable of a dataset.

    Raises:
        AirflowException: Airflow returned no Variable. Airflow retries the task, because the Variable may
            exist: if Airflow's API does not answer, `Variable.get` also returns the default.
        AirflowFailException: the Variable is not JSON, has unknown or missing keys, or names a path that does
            not exist. Airflow does not retry the task.
    """
    text = Variable.get(variable, default=None)
    if text is None:
        raise AirflowException(
            f"Airflow returned no Variable {variable!r}: it does not exist, or Airflow's API could not be "
            "reached\n"
            "  what to do: if it does not exist, create it as docs/airflow.md says; otherwise check the API "
            "server of Airflow"
        )
    try:
        return settings_of(text, variable)
    except SettingError as error:
        raise AirflowFailException(
            f"the Airflow Variable {variable!r} {error}\n"
            "  what to do: correct the Variable; docs/airflow.md explains its keys"
        ) from error


def settings_of(text: str, variable: str = VARIABLE) -> Settings:
    """Returns the settings in the text of the Variable.

    Raises:
        SettingError: the text is not JSON, or a value is wrong.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SettingError(f"is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingError(f"is not a JSON object: {values!r}")
    if unknown := sorted(set(values) - _KEYS):
        raise SettingError(f"has unknown keys {unknown}; the known keys are {sorted(_KEYS)}")
    if missing := sorted({"home", "config", "profiles"} - set(values)):
        raise SettingError(f"lacks the keys {missing}")
    _check_types(values)
    runner = runner_settings_of(values.get("runner", {}))
    home = str(values["home"])
    submit = str(values.get("spark_submit", f"{home}/.venv/bin/spark-submit"))
    if runner.kind == SUBMIT:
        _check_worker(home, submit)
    elif runner.kind == LIVY:
        _check_livy(values)
    else:
        submit = str(values.get("spark_submit", "spark-submit"))  # a program in the image
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
        values.get("spark_connection", SPARK_CONNECTION),
        runner,
        variable,
    )


def _check_worker(home: str, submit: str) -> None:
    """Raises SettingError if jobs cannot start on this worker."""
    if not (Path(home) / "jobs").is_dir():
        raise SettingError(f"names home={home}, which has no folder `jobs` on this worker")
    if which(submit) is None:
        raise SettingError(f"names spark_submit={submit}, which is not a program on this worker")


def _check_livy(values: Mapping[str, Any]) -> None:
    """Raises SettingError for a key that has no meaning for Livy, which starts jobs on its own machine."""
    remedies = {
        "spark_submit": "remove the key, because Livy has its own spark-submit",
        "spark_connection": "remove the key, because Livy's setting livy.spark.master names the master",
        "environment": "set these variables in the environment of Livy, and for executors as "
        "spark.executorEnv.<name> in the Spark profile",
        "check_node": "set check_node to false, because the checks cannot run on the machine of Livy",
    }
    for key, remedy in remedies.items():
        if values.get(key):
            raise SettingError(f"sets {key}, which the runner 'livy' cannot use; {remedy}")
    config = str(values["config"])
    if not config.startswith("/"):
        raise SettingError(
            f"names config={config}, but the runner 'livy' needs an absolute path, because Livy "
            "chooses the folder in which a job runs"
        )


def _check_types(values: Mapping[str, Any]) -> None:
    """Raises SettingError if a value of the Variable has the wrong type."""
    profiles, overrides = values["profiles"], values.get("set", [])
    if not isinstance(profiles, dict) or "default" not in profiles:
        raise SettingError(
            f"has profiles={profiles!r}, but the value must be an object with the key `default`, such as "
            '{"default": "conf/spark/….conf"}'
        )
    if not _are_texts(overrides):
        raise SettingError(
            f'has set={overrides!r}, but the value must be a list of strings such as ["a.b=value"]'
        )
    param_keys = values.get("param_keys", list(DEFAULT_KEYS))
    if not _are_texts(param_keys):
        raise SettingError(
            f'has param_keys={param_keys!r}, but the value must be a list of strings such as ["a.b", "a."]'
        )
    environment, check_node = values.get("environment", {}), values.get("check_node", False)
    if not isinstance(environment, dict):
        raise SettingError(
            f"has environment={environment!r}, but the value must be an object that maps names to values"
        )
    if not isinstance(check_node, bool):
        raise SettingError(f"has check_node={check_node!r}, but the value must be true or false")
    connection = values.get("spark_connection", SPARK_CONNECTION)
    if not isinstance(connection, str) or not connection:
        raise SettingError(
            f"has spark_connection={connection!r}, but the value must be the id of an Airflow connection"
        )


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def spark_master(settings: Settings) -> str:
    """Returns the Spark master: the host of the Spark connection, with its port if it has one.

    Without the connection, Airflow's Spark provider would submit jobs to YARN.

    Raises:
        AirflowException: Airflow returned no connection: the connection does not exist, or Airflow's API did
            not answer. Airflow retries the task.
        AirflowFailException: the connection has no host.
    """
    name = settings.spark_connection
    try:
        connection = BaseHook.get_connection(name)
    except AirflowException as error:
        raise AirflowException(
            f"Airflow returned no connection {name!r}, so no Spark master is set for the jobs: it does not "
            f"exist, or Airflow's API could not be reached: {error}\n"
            "  what to do: if it does not exist, create it with type spark and the master as host: "
            '{"conn_type": "spark", "host": "spark://…:7077"}; otherwise check Airflow\'s API server'
        ) from error
    if not connection.host:
        raise AirflowFailException(
            f"the Airflow connection {name!r} has no host, so no Spark master is set for the jobs\n"
            '  what to do: set its host to the master, such as "spark://…:7077"'
        )
    return f"{connection.host}:{connection.port}" if connection.port else str(connection.host)
