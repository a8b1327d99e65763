"""Requests the rows of the next batch of a training from other ranks, while a step computes.

TorchRec's pipeline for sparse features does the same (Ivchenko et al. 2022, RecSys): the ids of a batch reach
the ranks that hold their rows before the step of the batch. When the step before has updated its rows, the
vectors follow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.embeddings.table import StackedEmbedding
from training.embeddings.tables_of_model import tables_of


class EarlyRequests:
    """The requests of all tables of a model that exchange rows.

    A table takes part if a step looks up all ids of its batch in it, once, and nothing else. This is known
    when the forward pass of a step has ended.

    Args:
        model: the model.
        device: its device. On a GPU, requests are computed on another stream, so that the CPU waits for them
            and not for the step.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        tables = tables_of(model)
        for name, table in tables.items():
            table.send_early(name)
        self._tables = [table for table in tables.values() if table.placement.exchanges]
        self._take_part: list[StackedEmbedding] = []
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and self._tables else None
        self._ids_are_there: torch.cuda.Event | None = None

    @property
    def are_possible(self) -> bool:
        """Returns whether a table exchanges rows."""
        return bool(self._tables)

    def note_lookups(self, ids: Tensor) -> None:
        """Notes which tables take part. `ids` are those of this step; its forward pass must have ended."""
        self._take_part = [table for table in self._tables if table.has_only_looked_up(ids)]

    def note_next_batch(self) -> None:
        """Notes that the work that computes the next batch is queued. Call it before the step's own work."""
        if self._stream is not None:
            self._ids_are_there = torch.cuda.current_stream(self._device).record_event()

    def request(self, ids: Tensor) -> None:
        """Requests the rows of `ids` (B, W). The next step must look up the same tensor."""
        if self._stream is None:
            self._request(ids)
            return
        main = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            if self._ids_are_there is not None:
                self._stream.wait_event(self._ids_are_there)
            self._request(ids)
        main.wait_stream(self._stream)
        for table in self._take_part:
            table.batch_rows.record_stream(main)

    def _request(self, ids: Tensor) -> None:
        for table in self._take_part:
            table.batch_rows.request(ids, padded=table.on_kernels)

    def start_fetch(self) -> None:
        """Sends the vectors of the requested rows. Call it after the update of the rows."""
        for table in self._tables:
            table.start_fetch()

    def discard(self) -> None:
        """Forgets requests that no step has used. All ranks must call it."""
        for table in self._tables:
            table.batch_rows.discard()
