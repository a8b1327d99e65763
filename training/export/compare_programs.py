"""Compares exported programs with the model that they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conf.errors import InfrastructureError
from training.export.compiled_programs import COMPILED, load_compiled
from training.export.exported_forms import Ranker
from training.export.smaller_programs import LARGEST_MEAN_DIFFERENCE, Format

# Largest difference between an exported program and the model: of probabilities, and of numbers of a vector
# relative to the largest one.
TOLERANCE = 1e-5
_ERRORS_ONLY = 3


@dataclass(frozen=True)
class Sample:
    """Inputs of a form, and what the model computes for them.

    Attributes:
        form: the form.
        version: the model's version.
        inputs: inputs of several calls.
        expected: the results of the calls: (B,) or (B, E) float32.
    """

    form: Ranker
    version: str
    inputs: Sequence[tuple[Tensor, ...]]
    expected: Sequence[np.ndarray[Any, Any]]

    @classmethod
    def of(cls, form: Ranker, version: str, inputs: Sequence[tuple[Tensor, ...]]) -> Sample:
        """Runs a form. Later changes of its model do not change the sample."""
        with torch.inference_mode():
            return cls(form, version, inputs, [form(*of_call).numpy() for of_call in inputs])

    def greatest_differences(self, path: Path) -> dict[str, float]:
        """Returns the greatest differences of the programs of a form: ONNX, torch.export, and compiled.

        The last one exists only if the export has compiled programs. `path` is the path without endings.

        Raises:
            InfrastructureError: a difference is larger than TOLERANCE.
        """
        program = torch.export.load(path.with_suffix(".pt2")).module()
        with torch.inference_mode():
            results = {
                "onnx": self._run_onnx(path.with_suffix(".onnx")),
                "pt2": [program(*of_call).numpy() for of_call in self.inputs],
            }
            compiled = path.with_name(f"{path.name}.{COMPILED}")
            if compiled.exists():
                package = load_compiled(compiled)
                results[COMPILED] = [package(*of_call).numpy() for of_call in self.inputs]
        greatest = {}
        for kind, of_calls in results.items():
            greatest[kind] = max(float(differences.max()) for differences in self._differences(of_calls))
            self._require(greatest[kind], TOLERANCE, f"{path.name}.{kind}", "by up to")
        return greatest

    def mean_difference(self, path: Path, number_format: Format) -> float:
        """Returns the mean difference of the program `path`, which has numbers with fewer bits.

        Raises:
            InfrastructureError: it is larger than LARGEST_MEAN_DIFFERENCE.
        """
        differences = [of_call.ravel() for of_call in self._differences(self._run_onnx(path))]
        mean = float(np.concatenate(differences).mean())
        self._require(mean, LARGEST_MEAN_DIFFERENCE[number_format], path.name, "on average by")
        return mean

    def _run_onnx(self, path: Path) -> list[np.ndarray[Any, Any]]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY  # it warns of constants that it computes at each call
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return [
            session.run(
                [self.form.output],
                {name: values.numpy() for name, values in zip(self.form.inputs, of_call, strict=True)},
            )[0]
            for of_call in self.inputs
        ]

    def _differences(self, results: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Returns absolute differences, relative to the largest number of a call if that is above 1."""
        return [
            np.abs(result - expected) / max(1.0, float(np.abs(expected).max()))
            for result, expected in zip(results, self.expected, strict=True)
        ]

    def _require(self, difference: float, limit: float, program: str, how: str) -> None:
        if not difference <= limit:  # also if it is NaN
            raise InfrastructureError(
                f"{program} differs from model {self.version} {how} {difference:.2g} (at most {limit} is "
                "allowed)",
                "please report this; nothing was exported",
            )
