"""Requests to Triton Inference Server as programs without this project send them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np


def body_of(columns: Mapping[str, tuple[str, list[Any]]]) -> dict[str, Any]:
    """A request for n rows; `columns` maps each input to its data type and its n values."""
    return {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": [len(values), 1], "data": values}
            for name, (datatype, values) in columns.items()
        ]
    }


def ask(url: str, model: str, body: dict[str, Any]) -> dict[str, Any]:
    """The response of the endpoint of the KServe protocol; the status and the error of a refused request."""
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            answer: dict[str, Any] = json.loads(response.read())
    except urllib.error.HTTPError as error:
        answer = {"status": error.code, **json.loads(error.read())}
    return answer


def probabilities(answer: dict[str, Any]) -> np.ndarray:
    """The only output of a response."""
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"]) == ("probability", "FP32")
    return np.array(output["data"], dtype=np.float32)
