"""The base class of operators: a pydantic model whose errors contain operator, parameter and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, WrapValidator

from conf.errors import ConfigError
from conf.raw_types import Strict
from storage.feature_spec import FLOAT32_MAX, NUM_RESERVED_IDS


def _keep_as_written(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Validates a number and returns it unchanged: an integer is not converted to a float.

    So the digest of an operator's parameters differs for `3` and `3.0`.
    """
    number = validate(value)
    if not abs(number) <= FLOAT32_MAX:
        raise ValueError("it is outside the range of float32: use a number within ±3.4e38")
    return value


def _number_to_text(value: Any) -> Any:
    """Converts a number to its decimal text; returns other values unchanged."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# A number that may become the value of a feature, so it must be within the range of float32.
Number = Annotated[float, WrapValidator(_keep_as_written)]
Integer = Annotated[int, Field(gt=-(2**31), lt=2**31)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Buckets = Annotated[int, Field(ge=1, lt=2**31 - NUM_RESERVED_IDS)]
# YAML has lists, but Python callers may pass tuples. So pydantic's strict mode is off for the list, and on
# for its elements.
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Value = Annotated[str, BeforeValidator(_number_to_text), WithJsonSchema({"type": ["string", "number"]})]
Values = Annotated[tuple[Value, ...], Field(strict=False)]

_RULES = {
    "tuple_type": "it must be a list",
    "dict_type": "it must be a mapping",
    "too_short": "it must not be empty",
}


class Parameters(Strict):
    """The parameters of an operator. Objects are immutable. A value must have exactly the declared type.

    Raises:
        ConfigError: a parameter is missing, unknown or not allowed.
    """

    model_config = ConfigDict(strict=True)

    name: ClassVar[str]

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(
                f"{self.name} {'; '.join(_problems(error, values, sorted(type(self).model_fields)))}",
                f"correct these parameters; docs/operators describes the parameters of {self.name}",
            ) from error


def _problems(error: ValidationError, values: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """Returns one message for each wrong parameter.

    Pydantic reports several errors for one parameter if the parameter may have several types.
    """
    rules: dict[tuple[Any, ...], list[str]] = {}
    for detail in error.errors(include_url=False):
        path = _path(detail["loc"], values)
        key = ".".join(str(part) for part in path)
        if detail["type"] == "extra_forbidden":
            message = f"does not take {key}={detail['input']!r}; its parameters are {known}"
        elif detail["type"] == "missing":
            message = f"needs the parameter {key}"
        else:
            rule = _RULES.get(detail["type"], detail["msg"].removeprefix("Value error, "))
            message = f"{key}={detail['input']!r}: {rule}"
        rules.setdefault(path, []).append(message)
    deepest = [path for path in rules if not any(_is_above(path, other) for other in rules)]
    return [_joined(rules[path]) for path in deepest]


def _path(location: tuple[Any, ...], values: Any) -> tuple[Any, ...]:
    """Returns the keys and indices of an error's location, without names of types that pydantic adds."""
    path: list[Any] = []
    for part in location:
        if (isinstance(values, Mapping) and part in values) or (
            isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
        ):
            values = values[part]
        elif path:
            continue
        path.append(part)
    return tuple(path)


def _is_above(path: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Returns whether `path` is a prefix of `other`."""
    return len(path) < len(other) and other[: len(path)] == path


def _joined(messages: Sequence[str]) -> str:
    """Joins several messages about one parameter into one message.

    The value appears once in this message, and the rules are joined by `or`.
    """
    intro = messages[0].partition(": ")[0]
    rules = [message.removeprefix(f"{intro}: ") for message in messages]
    return f"{intro}: {' or '.join(dict.fromkeys(rules))}" if len(messages) > 1 else messages[0]
