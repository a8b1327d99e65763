"""Messages between ranks start while a rank computes, and change no bit of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from conf.types import Train
from tests.training.ranks_in_threads import on_ranks
from tests.training.test_spread_tables import OPTIMIZERS, PLACEMENTS, make_model, share
from training.collectives import ALONE, Collectives, ReceivedRows
from training.data.batch import Batch
from training.loop.train_step import Trainer
from training.optimizers.gradients import DenseGradient

STEPS = 5
CPU = torch.device("cpu")


class Recorded:
    """Collectives that note in `events` when a message starts and when its result is read."""

    def __init__(self, collectives: Collectives) -> None:
        self.rank, self.size = collectives.rank, collectives.size
        self.events: list[str] = []
        self._collectives = collectives

    def allreduce_sum(self, values: Tensor) -> Tensor:
        return self._collectives.allreduce_sum(values)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        return self._collectives.allgather(*tensors)

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        return self.start_all_to_all(values, splits, "exchange")()

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        return self._noted(name, self._collectives.start_allreduce_sum(values, name))

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        kind = "ids" if name.endswith(".request") and values.dim() == 1 else name
        return self._noted(kind, self._collectives.start_all_to_all(values, splits, name))

    def _noted(self, name: str, wait: Callable[[], Any]) -> Callable[[], Any]:
        self.events.append(f"start {name}")

        def noted() -> Any:
            self.events.append(f"read {name}")
            return wait()

        return noted


def parameters_of(sizes: Sequence[int]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 9), max_size=6),
    bucket_bytes=st.integers(1, 80),
    ranks=st.integers(1, 3),
    data=st.data(),
)
def test_sums_are_those_of_all_gradients(
    sizes: list[int], bucket_bytes: int, ranks: int, data: st.DataObject
) -> None:
    """Whatever the buckets are, and whichever gradients a rank lacks, in several steps."""
    lacks = data.draw(
        st.lists(st.sets(st.integers(0, max(len(sizes) - 1, 0))), min_size=ranks, max_size=ranks)
    )

    def body(collectives: Collectives) -> list[tuple[Tensor, Tensor]]:
        parameters = parameters_of(sizes)
        gradient = DenseGradient(parameters, CPU, collectives, bucket_bytes)
        results = []
        for step in range(3):
            with gradient.computing():
                terms = [
                    (parameter * (place + 1) * (collectives.rank + 1 + step)).sum()
                    for place, parameter in enumerate(parameters)
                    if place not in lacks[collectives.rank]
                ]
                if terms:
                    torch.stack(terms).sum().backward()
            wait = gradient.start_sum(torch.tensor(1.0 + collectives.rank))
            summed, loss = wait()
            assert torch.equal(wait()[0], summed)
            assert all(parameter.grad is None for parameter in parameters)
            results.append((summed.clone(), loss.clone()))
        return results

    for results in on_ranks(ranks, body):
        for step, (summed, loss) in enumerate(results):
            expected = [
                torch.full((size,), float((place + 1) * sum(of_ranks)))
                for place, size in enumerate(sizes)
                for of_ranks in [[rank + 1 + step for rank in range(ranks) if place not in lacks[rank]]]
            ]
            assert summed.tolist() == (torch.cat(expected).tolist() if expected else [])
            assert float(loss) == sum(range(1, ranks + 1))


def test_a_bucket_is_summed_while_the_backward_pass_goes_on() -> None:
    """The gradient of the first layer is computed last; by then the sums of the others have started."""

    def body(collectives: Collectives) -> list[str]:
        recorded = Recorded(collectives)
        layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        gradient = DenseGradient(list(layers.parameters()), CPU, recorded, bucket_bytes=4 * 20)
        layers[0].weight.register_hook(lambda _: recorded.events.append("first layer"))
        for _ in range(2):
            with gradient.computing():
                loss = layers(torch.ones(2, 4)).sum()
                loss.backward()
            recorded.events.append("backward has ended")
            gradient.start_sum(loss.detach())()
        return recorded.events

    step = ["start dense.0", "start dense.1", "first layer", "backward has ended"]
    for events in on_ranks(2, body):
        shown = [event for event in events if not event.startswith("read")]
        assert [event for event in shown if event not in ("start dense.2", "start dense.3")] == step * 2


def test_little_is_left_for_the_last_bucket() -> None:
    """It is ready only when the backward pass has ended. Small buckets would cost more messages."""

    def body(collectives: Collectives) -> list[int]:
        parameters = parameters_of([5, 95, 400, 1000, 1000])
        gradient = DenseGradient(parameters, CPU, collectives, bucket_bytes=4 * 800)
        return [sum(parameter.numel() for parameter in bucket.parameters) for bucket in gradient._buckets]

    assert on_ranks(2, body) == [[1000, 1000, 400, 100]] * 2


@pytest.mark.parametrize("architecture", ["dlrm", "dcn_v2_low_rank"])
def test_the_bottom_mlp_computes_while_vectors_arrive(architecture: str) -> None:
    def body(collectives: Collectives) -> list[str]:
        recorded = Recorded(collectives)
        trainer = trainer_of(recorded, "row_wise", "sgd", architecture)
        bottom: Any = trainer.model.bottom
        bottom.register_forward_hook(lambda *_: recorded.events.append("bottom"))
        run(trainer, [share(seed, collectives) for seed in range(3)], ahead=True)
        return [event for event in recorded.events if event == "bottom" or event.endswith(".request")]

    start, read = "start embedding.weight.request", "read embedding.weight.request"
    early = [start, "bottom", read]
    assert on_ranks(2, body) == [["bottom", *early, *early]] * 2


def test_hooks_and_gradients_leave_the_model_as_it_was() -> None:
    def body(collectives: Collectives) -> None:
        (parameter,) = parameters_of([3])
        gradient = DenseGradient([parameter], CPU, collectives, bucket_bytes=1)
        with pytest.raises(RuntimeError, match="stopped"), gradient.computing():
            raise RuntimeError("stopped")
        parameter.sum().backward()
        assert parameter.grad is not None

    on_ranks(2, body)


def trainer_of(
    collectives: Collectives, placement: str, optimizer: str, architecture: str, **changed: Any
) -> Trainer:
    embeddings = {**PLACEMENTS[placement], "optimizer": optimizer}
    train = Train.model_validate(
        {
            "num_ranks": 1,
            "embedding_learning_rate": OPTIMIZERS[optimizer],
            "embeddings": embeddings,
            **changed,
        }
    )
    return Trainer(make_model(collectives, embeddings, architecture).train(), train, collectives)


def run(trainer: Trainer, batches: Sequence[Batch], *, ahead: bool) -> list[float]:
    """The losses of one step a batch. With `ahead`, each step gets the next batch too."""
    following = batches[1:] if ahead else []
    return [
        float(trainer.step(batch, 1.0, next_batch=next_batch))
        for batch, next_batch in zip_longest(batches, following)
    ]


@pytest.mark.parametrize("changed", [{}, {"clip_norm": 0.1}, {"l2": 0.01}], ids=["plain", "clipped", "l2"])
@pytest.mark.parametrize("architecture", ["dlrm", "wide_and_deep"])
@pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "lazy_adam"])
@pytest.mark.parametrize("placement", ["row_wise", "table_wise", "auto"])
def test_early_requests_change_no_bit(
    placement: str, optimizer: str, architecture: str, changed: dict[str, Any]
) -> None:
    """The vectors of a batch are those after the last update, though its ids were sent before it."""

    def body(collectives: Collectives, *, ahead: bool) -> tuple[list[float], dict[str, Tensor]]:
        trainer = trainer_of(collectives, placement, optimizer, architecture, **changed)
        batches = [share(seed, collectives) for seed in range(STEPS)]
        losses = run(trainer, batches, ahead=ahead)
        return losses, trainer.state()

    late = on_ranks(2, lambda collectives: body(collectives, ahead=False))
    early = on_ranks(2, lambda collectives: body(collectives, ahead=True))
    for (losses, state), (expected, of_late) in zip(early, late, strict=True):
        assert losses == expected
        assert state.keys() == of_late.keys()
        assert all(torch.equal(state[name], value) for name, value in of_late.items())
        assert losses[-1] != losses[0]


@pytest.mark.parametrize("architecture", ["dlrm", "wide_and_deep"])
def test_messages_of_a_step_in_their_order(architecture: str) -> None:
    """Ids of the next batch before the backward pass, gradients in it, vectors after the update of the rows."""

    def body(collectives: Collectives) -> list[str]:
        recorded = Recorded(collectives)
        trainer = trainer_of(recorded, "row_wise", "sgd", architecture)
        batches = [share(seed, collectives) for seed in range(4)]
        run(trainer, batches[:2], ahead=True)
        trainer.step(batches[2], 1.0, next_batch=batches[3])
        recorded.events.clear()
        apply_rows, start_sum = trainer._updates.apply_rows, trainer._updates.dense_gradient.start_sum

        def noted_apply(*arguments: Any) -> None:
            apply_rows(*arguments)
            recorded.events.append("rows are updated")

        def noted_sum(loss: Tensor) -> Any:
            recorded.events.append("backward has ended")
            return start_sum(loss)

        trainer._updates.apply_rows = noted_apply  # type: ignore[method-assign]
        trainer._updates.dense_gradient.start_sum = noted_sum  # type: ignore[method-assign]
        trainer.step(batches[3], 1.0, next_batch=batches[0])
        trainer.discard_requests()
        return recorded.events

    for events in on_ranks(2, body):
        tables = sum(event == "start ids" for event in events)
        assert tables == (2 if architecture == "wide_and_deep" else 1)
        gradients = [event for event in events if event.startswith("start") and ".gradient." in event]
        assert len(gradients) == tables
        places = {event: place for place, event in enumerate(events)}  # of the last one
        vectors = [
            place for place, event in enumerate(events) if event.endswith(".request") and "start" in event
        ]
        assert places["start ids"] < min(places[event] for event in gradients)
        assert max(places[event] for event in gradients) < places["backward has ended"]
        assert places["rows are updated"] < min(vectors)
        assert "exchange" not in " ".join(events)


def test_a_training_that_ends_early_leaves_nothing_in_flight() -> None:
    """The last step got a next batch that no step uses. The ranks then look up and train as ever."""

    def body(collectives: Collectives) -> tuple[Tensor, list[float]]:
        trainer = trainer_of(collectives, "row_wise", "sgd", "dlrm")
        batches = [share(seed, collectives) for seed in range(4)]
        trainer.step(batches[0], 1.0, next_batch=batches[1])
        with torch.no_grad():  # a validation between two steps looks the same ids up
            before = trainer.model.eval()(batches[1].dense, batches[1].categorical)
        trainer.model.train()
        trainer.step(batches[2], 1.0, next_batch=batches[3])  # not the batch that was announced
        trainer.discard_requests()
        return before, run(trainer, batches, ahead=True)

    def alone(collectives: Collectives) -> tuple[Tensor, list[float]]:
        trainer = trainer_of(collectives, "row_wise", "sgd", "dlrm")
        batches = [share(seed, collectives) for seed in range(4)]
        trainer.step(batches[0], 1.0)
        with torch.no_grad():
            before = trainer.model.eval()(batches[1].dense, batches[1].categorical)
        trainer.model.train()
        trainer.step(batches[2], 1.0)
        return before, run(trainer, batches, ahead=False)

    for mine, expected in zip(on_ranks(2, body), on_ranks(2, alone), strict=True):
        assert torch.equal(mine[0], expected[0])
        assert mine[1] == expected[1]


def test_one_rank_looks_at_one_batch_at_a_time() -> None:
    assert not trainer_of(ALONE, "row_wise", "sgd", "dlrm").looks_ahead
    assert on_ranks(2, lambda ranks: trainer_of(ranks, "row_wise", "sgd", "dlrm").looks_ahead) == [True] * 2
    assert (
        on_ranks(2, lambda ranks: trainer_of(ranks, "replicated", "sgd", "dlrm").looks_ahead) == [False] * 2
    )


def test_fp16_scales_and_skips_alike() -> None:
    """Whether the rows are updated is known only when all gradients have arrived."""

    def body(collectives: Collectives, *, ahead: bool) -> tuple[list[float], dict[str, float]]:
        trainer = trainer_of(collectives, "row_wise", "sgd", "dlrm", precision="fp16")
        batches = [share(seed, collectives) for seed in range(STEPS)]
        batches[2].dense[0, 0] = torch.inf if collectives.rank else 0.0
        return run(trainer, batches, ahead=ahead), trainer.facts()

    for (losses, facts), (expected, other) in zip(
        on_ranks(2, lambda collectives: body(collectives, ahead=True)),
        on_ranks(2, lambda collectives: body(collectives, ahead=False)),
        strict=True,
    ):
        torch.testing.assert_close(
            torch.tensor(losses), torch.tensor(expected), rtol=0, atol=0, equal_nan=True
        )
        assert facts == other
        assert facts["skipped_steps"] == 1
