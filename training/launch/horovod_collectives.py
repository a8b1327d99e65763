"""The collectives of a training over Horovod: sums, gathers and exchanges of tensors between ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import horovod.torch as hvd
import torch
from torch import Tensor

from training.distributed.collectives import ReceivedRows


class HorovodCollectives:
    """`Collectives` over Horovod. Names are reused, because Horovod negotiates a name only once."""

    def __init__(self) -> None:
        self.rank = hvd.rank()
        self.size = hvd.size()

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """See `Collectives`."""
        summed: Tensor = hvd.allreduce(values, name="sum", op=hvd.Sum)
        return summed

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `Collectives`."""
        handle = hvd.allreduce_async_(values, name=name, op=hvd.Sum)
        return lambda: hvd.synchronize(handle)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """See `Collectives`."""
        return list(hvd.grouped_allgather(list(tensors), name="rows"))

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """See `Collectives`."""
        return self.start_all_to_all(values, splits, "exchange")()

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        """See `Collectives`."""
        # Horovod does not support bfloat16. The numbers are not changed on the way, so their bits are sent as
        # float16.
        sent = values.view(torch.float16) if values.dtype == torch.bfloat16 else values
        counts = torch.tensor(list(splits), dtype=torch.int32)
        handle = hvd.alltoall_async(sent.contiguous(), splits=counts, name=name)

        def wait() -> tuple[Tensor, list[int]]:
            received, received_counts = hvd.synchronize(handle)
            return received.view(values.dtype), received_counts.tolist()

        return wait
