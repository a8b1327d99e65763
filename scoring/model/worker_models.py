"""Keeps loaded models in a Python worker process, from one Spark task to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar

from scoring.model.predictor import Predictor, load_predictor
from scoring.requests import ModelRequest

# Two models are kept, because evaluate_model scores with the champion and the challenger.
_PREDICTORS_KEPT = 2


class RequestWithModel(Protocol):
    """A hashable request that names the model that computes the answer.

    Such requests are ListRequest and RetrievalRequest.
    """

    @property
    def model(self) -> ModelRequest:
        """Returns the model to load."""


Request = TypeVar("Request", bound=RequestWithModel)
Loaded = TypeVar("Loaded")


class WorkerModels:
    """Loads models when they are needed, and keeps the most recently used models in memory.

    A Spark task uses the instance that `models_of_process()` returns. This instance exists as long as the
    Python worker process runs. Other callers create an instance. When an instance is freed, its models are
    freed too.
    """

    def __init__(self) -> None:
        self._load_predictor = lru_cache(maxsize=_PREDICTORS_KEPT)(load_predictor)
        self._latest: dict[Callable[..., Any], tuple[Any, Any]] = {}
        self._lock = threading.RLock()  # several threads of a job may score at the same time

    def predictor(self, request: ModelRequest, gpu: int | None, threads: int) -> Predictor:
        """Returns the predictor of a request, and loads it if necessary.

        The two most recently used predictors stay loaded. The arguments are those of `load_predictor`.
        """
        with self._lock:
            return self._load_predictor(request, gpu, threads)

    def latest(
        self, load: Callable[[Request, Predictor], Loaded], request: Request, gpu: int | None, threads: int
    ) -> Loaded:
        """Returns the result of `load` for a request and the predictor of this request.

        For each function `load`, only the latest result stays in memory.

        Args:
            load: `load_recommender` or `load_retriever`.
            request: the argument of `load`. It names the model to load.
            gpu, threads: the arguments of `load_predictor`.
        """
        key = (request, gpu, threads)
        with self._lock:
            kept = self._latest.get(load)
            if kept is None or kept[0] != key:
                kept = (key, load(request, self.predictor(request.model, gpu, threads)))
                self._latest[load] = kept
            return kept[1]


@cache
def models_of_process() -> WorkerModels:
    """Returns the instance of WorkerModels that all tasks of this Python worker process share."""
    return WorkerModels()
