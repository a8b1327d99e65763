"""Models that a Python worker process keeps loaded from one Spark task to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar

from scoring.inputs.requests import ModelRequest
from scoring.model.predictor import Predictor, load_predictor

# Two models are kept, because evaluate_model scores with the champion and the challenger.
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

    A Spark task uses `models_of_process()`, whose models stay loaded as long as the Python worker process
    runs. Other callers create their own instance. Its models are freed together with the instance.
    """

    def __init__(self) -> None:
        self._load_predictor = lru_cache(maxsize=_PREDICTORS_KEPT)(load_predictor)
        self._latest: dict[Callable[..., Any], tuple[Any, Any]] = {}

    def predictor(self, request: ModelRequest, gpu: int | None, threads: int) -> Predictor:
        """The predictor of a request. Keeps the latest two. The arguments are those of `load_predictor`."""
        return self._load_predictor(request, gpu, threads)

    def latest(
        self, load: Callable[[Request, Predictor], Loaded], request: Request, gpu: int | None, threads: int
    ) -> Loaded:
        """The result of `load` for a request and its predictor. Keeps only the latest result of each `load`.

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
    """The models of this Python worker process. All tasks that run in the process share them."""
    return WorkerModels()
