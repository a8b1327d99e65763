"""The key `runner` of the Variable: the kind of the runner, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUBMIT, KUBERNETES, LIVY = "spark-submit", "kubernetes", "livy"


class SettingError(ValueError):
    """A value of the Variable is wrong. The message says what is wrong, without naming the Variable."""


@dataclass(frozen=True)
class RunnerSettings:
    """The values of the key `runner`.

    Attributes:
        kind: `spark-submit`, `kubernetes` or `livy`.
        connection: the id of the Airflow connection to Kubernetes or Livy; None for the provider's default.
        image: maps each job to the image of its pod; `default` is for all other jobs.
        namespace: the namespace of the pods; None for that of the connection.
        service_account: the service account of the pods; None for that of the pod template.
        resources: maps each job to the `requests` and `limits` of its pod; `default` is for all other jobs.
        pod_template: the file of the pod template on the worker, if any.
        startup_timeout_s: seconds after which a pod that has not started is a failure.
        proxy_user: the user as whom Livy runs the jobs, if any.
        poll_s: seconds between requests for the state of a batch of Livy.
    """

    kind: str = SUBMIT
    connection: str | None = None
    image: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None
    service_account: str | None = None
    resources: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    pod_template: str | None = None
    startup_timeout_s: int = 900
    proxy_user: str | None = None
    poll_s: float = 5

    def image_of(self, job: str) -> str | None:
        """Returns the image of the pod of a job; None if the pod template sets the image."""
        return self.image.get(job, self.image.get("default"))

    def resources_of(self, job: str) -> Mapping[str, Mapping[str, str]]:
        """Returns the requests and limits of the pod of a job; empty if the pod template sets them."""
        return self.resources.get(job, self.resources.get("default", {}))


def runner_settings_of(value: Any) -> RunnerSettings:
    """Returns the settings in the value of the key `runner`.

    Raises:
        SettingError: the value is wrong.
    """
    if not isinstance(value, dict):
        raise SettingError(
            f'has runner={value!r}, but runner must be an object such as {{"kind": "spark-submit"}}'
        )
    kind = value.get("kind", SUBMIT)
    if kind not in _KEYS_OF:
        raise SettingError(f"has runner.kind={kind!r}, but the kinds are {', '.join(_KEYS_OF)}")
    keys = _KEYS_OF[kind]
    if unknown := sorted(set(value) - {"kind", *keys}):
        raise SettingError(
            f"has unknown keys {unknown} in runner; the runner {kind!r} has the keys {sorted(keys)}"
        )
    named: dict[str, Any] = {"kind": kind}
    for key in sorted(set(value) & set(keys)):
        named[key] = _checked(key, value[key], *keys[key])
    runner = RunnerSettings(**named)
    if kind == KUBERNETES and runner.image_of("") is None and runner.pod_template is None:
        raise SettingError(
            'has neither runner.image nor runner.pod_template, but the runner "kubernetes" needs one of them'
        )
    return runner


def _checked(key: str, value: Any, convert: Callable[[Any], Any], form: str) -> Any:
    converted = convert(value)
    if converted is None:
        raise SettingError(f"has runner.{key}={value!r}, but the value must be {form}")
    return converted


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _positive(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value > 0 else None


def _texts(value: Any) -> dict[str, str] | None:
    """Returns a setting as strings by job; None if it is wrong. A single string becomes that of `default`."""
    texts = {"default": value} if isinstance(value, str) else value
    if not isinstance(texts, dict) or not all(_text(text) for text in texts.values()):
        return None
    return texts


def _resources(value: Any) -> dict[str, dict[str, dict[str, str]]] | None:
    """Returns requests and limits by job, with quantities as strings, as Kubernetes requires."""
    if not isinstance(value, dict):
        return None
    by_job = {"default": value} if set(value) <= {"requests", "limits"} else value
    for amounts in by_job.values():
        if not isinstance(amounts, dict) or not set(amounts) <= {"requests", "limits"}:
            return None
        if not all(_amounts(chosen) for chosen in amounts.values()):
            return None
    return {
        job: {
            kind: {name: str(amount) for name, amount in chosen.items()} for kind, chosen in amounts.items()
        }
        for job, amounts in by_job.items()
    }


def _amounts(value: Any) -> bool:
    return isinstance(value, dict) and all(_text(amount) or _positive(amount) for amount in value.values())


def _file(value: Any) -> str | None:
    return value if isinstance(value, str) and Path(value).is_file() else None


_AMOUNTS = 'an object such as {"default": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {…}}}'
_OF_KUBERNETES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "connection": (_text, "the id of a connection"),
    "image": (_texts, 'an image, or an object such as {"default": …, "train_model": …}'),
    "namespace": (_text, "the name of a namespace"),
    "service_account": (_text, "the name of a service account"),
    "resources": (_resources, _AMOUNTS),
    "pod_template": (_file, "the path of a file on this worker"),
    "startup_timeout_s": (_positive, "a number of seconds above 0"),
}
_OF_LIVY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "connection": (_text, "the id of a connection"),
    "proxy_user": (_text, "the name of a user"),
    "poll_s": (_positive, "a number of seconds above 0"),
}
_KEYS_OF = {SUBMIT: {}, KUBERNETES: _OF_KUBERNETES, LIVY: _OF_LIVY}
