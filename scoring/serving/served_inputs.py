"""What the models of a repository read and return. All versions in a repository have the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from conf.errors import ConfigError, DataError

# How the ranker is computed: by Triton's backend of ONNX Runtime, by the same with TensorRT on a GPU, or by
# ONNX Runtime in Triton's Python backend.
Backend = Literal["onnxruntime", "tensorrt", "python"]
PROBABILITY = "probability"


@dataclass(frozen=True)
class ServedInputs:
    """The inputs of a workflow and of a ranker: R raw columns, D dense features, W columns of ids.

    Attributes:
        backend: how the ranker is computed.
        raw_columns: maps each raw column to its type.
        dense: (D,), the names of the dense features.
        categorical: for each feature that is an id or a list of ids, its name and its number of columns.
        context: maps the raw columns of context features to their types, if the repository has an ensemble
            that looks up the features of users and items; None if it has none.
    """

    backend: Backend
    raw_columns: Mapping[str, str]
    dense: tuple[str, ...]
    categorical: tuple[tuple[str, int], ...]
    context: Mapping[str, str] | None = None

    @classmethod
    def of(
        cls,
        backend: Backend,
        raw_columns: Mapping[str, str],
        layout: Mapping[str, Any],
        context: Mapping[str, str] | None,
    ) -> Self:
        """Returns the inputs of a model.

        Args:
            backend: how the ranker is computed.
            raw_columns: maps each raw column of the workflow to its type.
            layout: `inputs` of the model's export.json.
            context: see the attribute.
        """
        ids = tuple((column["feature"], column["number"]) for column in layout["categorical"]["columns"])
        return cls(backend, dict(raw_columns), tuple(layout["dense"]["columns"]), ids, context)

    @property
    def widths(self) -> dict[str, int]:
        """Maps the inputs of the ranker that have columns to their number of columns."""
        widths = {"dense": len(self.dense), "categorical": sum(number for _, number in self.categorical)}
        return {name: width for name, width in widths.items() if width}

    def to_json(self) -> dict[str, Any]:
        """Returns the inputs as JSON values. The order of raw columns is kept."""
        return {
            "backend": self.backend,
            "raw_columns": [list(column) for column in self.raw_columns.items()],
            "dense": list(self.dense),
            "categorical": [list(feature) for feature in self.categorical],
            "context": None if self.context is None else [list(column) for column in self.context.items()],
        }

    @classmethod
    def from_json(cls, stored: Any, path: str) -> Self:
        """Returns the inputs that `to_json` returned. Raises DataError if the file `path` is damaged."""
        try:
            ids = tuple((name, number) for name, number in stored["categorical"])
            context = None if stored["context"] is None else dict(stored["context"])
            return cls(stored["backend"], dict(stored["raw_columns"]), tuple(stored["dense"]), ids, context)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is damaged: {error!r}", "export the model to another folder") from error

    def require_equal(self, served: ServedInputs, repository: str) -> None:
        """Raises ConfigError if the models in a repository have other inputs than this model."""
        different = list(self._differences(served))
        if different:
            raise ConfigError(
                f"the models in {repository} differ from the new one in {'; '.join(different)}",
                "export the model to another folder, and let the clients change",
            )

    def _differences(self, served: ServedInputs) -> Iterator[str]:
        if self.backend != served.backend:
            yield f"backend ({served.backend}, new: {self.backend})"
        if (self.context is None) != (served.context is None):
            yield f"the look-up ({_has(served.context)}, new: {_has(self.context)})"
        for what, old, new in (
            ("raw columns", served.raw_columns.items(), self.raw_columns.items()),
            ("dense features", served.dense, self.dense),
            ("features of ids", served.categorical, self.categorical),
            ("context columns", (served.context or {}).items(), (self.context or {}).items()),
        ):
            if list(old) != list(new):
                changed = [value for value in old if value not in new] or list(old)
                added = [value for value in new if value not in old] or list(new)
                yield f"{what} ({_shown(changed)}, new: {_shown(added)})"


def _has(context: Mapping[str, str] | None) -> str:
    return "no" if context is None else "yes"


def _shown(values: list[Any]) -> str:
    shown = ", ".join(
        " ".join(str(part) for part in value) if isinstance(value, tuple) else value for value in values[:3]
    )
    return f"{shown} and {len(values) - 3} more" if len(values) > 3 else shown
