"""Models that a Python worker process keeps loaded from one Spark task to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar

from scoring.inputs.requests import ModelRequest
from scoring.model.predictor import Predictor, load_predictor

# Champion and challenger: evaluate_model scores with both.
_PREDICTORS_KEPT = 2


class RequestWithModel(Protocol):
    """A request that names the model it needs: ListRequest or RetrievalRequest. It is hashable."""

    @property
    def model(self) -> ModelRequest:
        """The model to load."""


Request = TypeVar("Request", bound=RequestWithModel)
Loaded = TypeVar("Loaded")


class WorkerModels:
    """Loads models on demand and keeps the latest ones.

    A Spark task uses `models_of_process()`, which exists as long as its Python worker. Other callers create
    an instance, whose models are freed with it.
    """

    def __init__(self) -> None:
        self._load_predictor = lru_cache(maxsize=_PREDICTORS_KEPT)(load_predictor)
        self._latest: dict[Callable[..., Any], tuple[Any, Any]] = {}

    def predictor(self, request: ModelRequest, gpu: int | None, threads: int) -> Predictor:
        """The predictor of a request, with the arguments of `load_predictor`. The latest two are kept."""
        return self._load_predictor(request, gpu, threads)

    def latest(
        self, load: Callable[[Request, Predictor], Loaded], request: Request, gpu: int | None, threads: int
    ) -> Loaded:
        """What `load` returns for a request and its predictor. One result of each `load` is kept, the latest.

        Args:
            load: `load_recommender` or `load_retriever`.
        """
        key = (request, gpu, threads)
        kept = self._latest.get(load)
        if kept is None or kept[0] != key:
            kept = (key, load(request, self.predictor(request.model, gpu, threads)))
            self._latest[load] = kept
        return kept[1]


@cache
def models_of_process() -> WorkerModels:
    """The models of this Python worker process, shared by the tasks that run in it one after the other."""
    return WorkerModels()
