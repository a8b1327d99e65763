"""The collectives of a training over Horovod: sums, gathers and exchanges of tensors between ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import horovod.torch as hvd
import torch
from torch import Tensor


class HorovodCollectives:
    """`Collectives` over Horovod. Tensor names are constant, so that Horovod negotiates them only once."""

    def __init__(self) -> None:
        self.rank = hvd.rank()
        self.size = hvd.size()

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """See `Collectives`."""
        return self.start_allreduce_sum(values)()

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """See `Collectives`."""
        handle = hvd.allreduce_async(values, name="dense", op=hvd.Sum)
        return partial(hvd.synchronize, handle)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """See `Collectives`."""
        return list(hvd.grouped_allgather(list(tensors), name="rows"))

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """See `Collectives`."""
        # Horovod does not support bfloat16. The numbers are not changed on the way, so their bits are sent as
        # float16.
        sent = values.view(torch.float16) if values.dtype == torch.bfloat16 else values
        counts = torch.tensor(list(splits), dtype=torch.int32)
        received, received_counts = hvd.alltoall(sent.contiguous(), splits=counts, name="exchange")
        return received.view(values.dtype), received_counts.tolist()
