"""The lookups of a table since the last step, and the gradient of the rows that they read.

Notation: E numbers per row, N entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from training.distributed.collectives import Collectives
from training.embeddings.exchange import start_return, sum_over_ranks
from training.embeddings.lookup import BatchLookup, Pooling
from training.embeddings.placed_rows import Placement
from training.embeddings.router import Router
from training.embeddings.row_gradients import LookupGradient, SummedRowGradient
from training.embeddings.rows import Groups, group, sum_rows

# A gradient of replicated rows, and a function that waits for the gradients of this rank's other rows.
Return = tuple[SummedRowGradient, Callable[[], Tensor]]


class PendingLookups:
    """The lookups of one table whose gradients nobody has read yet.

    Args:
        placement, router, pooling: those of the table.
        collectives: the collectives over which the table exchanges rows.

    Attributes:
        name: name of the table, the same on all ranks. If it is not empty, gradients are sent to other ranks
            as soon as the backward pass has computed them.
    """

    def __init__(
        self, placement: Placement, router: Router, pooling: Pooling, collectives: Collectives
    ) -> None:
        self._placement, self._router, self._pooling = placement, router, pooling
        self._collectives = collectives
        self.name = ""
        self._lookups: list[BatchLookup] = []
        self._names: dict[int, str] = {}
        self._hooks: dict[int, RemovableHandle] = {}
        self._returns: dict[int, Return] = {}

    def add(self, lookup: BatchLookup) -> None:
        """Adds the lookup of a batch."""
        if lookup.exchanged is not None and self.name:
            self._names[id(lookup)] = f"{self.name}.gradient.{len(self._lookups)}"
            self._hooks[id(lookup)] = lookup.vectors.register_post_accumulate_grad_hook(
                lambda _: self._start_return(lookup)
            )
        self._lookups.append(lookup)

    def any(self) -> bool:
        """Returns whether there is a lookup."""
        return bool(self._lookups)

    def only(self, ids: Tensor) -> bool:
        """Returns whether these ids were looked up, and nothing else."""
        return len(self._lookups) == 1 and self._lookups[0].ids is ids

    @torch.no_grad()
    def take_gradient(self, weight: Tensor, collectives: Collectives) -> SummedRowGradient:
        """Returns and clears the gradient since the last call, summed over ranks and sorted by row.

        The result has no rows if no gradient was computed. For rows that all ranks hold, all ranks get the
        same gradient.

        Args:
            weight: the table's matrix (rows, E).
            collectives: the collectives of the ranks that train on parts of one batch.
        """
        parts = [self._gradient(lookup) for lookup in self._lookups if lookup.vectors.grad is not None]
        self._clear()
        of_replicated = [(part.rows, part.values) for part, _ in parts]
        replicated = self._sum(weight, of_replicated, distinct=len(parts) == 1)
        if self._placement.replicated_rows:
            replicated = sum_over_ranks(replicated, collectives, self._router.span)
        if not self._placement.exchanges:
            return replicated
        owned = self._sum(weight, [part for _, part in parts if part is not None], distinct=False)
        return SummedRowGradient(
            torch.cat([replicated.rows, owned.rows]), torch.cat([replicated.values, owned.values])
        )

    @torch.no_grad()
    def take_lookup_gradient(self, collectives: Collectives) -> LookupGradient | None:
        """Returns and clears the gradient of the only batch since the last call, with repeated rows.

        One rank has an entry for each lookup. If there are several ranks, each of them sums the gradient of a
        row over its own lookups, and there is an entry for each rank that looked up the row. The update
        kernel sums them.

        Returns:
            None if there was not exactly one batch. In this case nothing is cleared; use `take_gradient`
            instead.
        """
        if len(self._lookups) != 1:
            return None
        (lookup,) = self._lookups
        if collectives.size == 1 and not self._placement.exchanges:
            self._clear()
            return LookupGradient(lookup.keys, *lookup.gradients(self._pooling))
        part, owned = self._gradient(lookup)
        self._clear()
        rows, values = part.rows, part.values
        if self._placement.replicated_rows:
            rows, values = collectives.allgather(rows, values)
        if owned is not None:
            rows, values = torch.cat([rows, owned[0]]), torch.cat([values, owned[1]])
        return LookupGradient(rows, values)

    def _clear(self) -> None:
        for hook in self._hooks.values():
            hook.remove()  # it refers to the lookup, which refers to it
        self._lookups, self._names, self._hooks, self._returns = [], {}, {}, {}

    def _gradient(self, lookup: BatchLookup) -> tuple[SummedRowGradient, tuple[Tensor, Tensor] | None]:
        """Returns the gradient of one lookup.

        Returns:
            First, the gradient of replicated rows, from this rank. Second, for the rows that only this rank
            holds, the row indices (A,), with repeats, and the gradients (A, E) from all ranks; None if no
            rows are exchanged.
        """
        if lookup.exchanged is None:
            return self._summed(lookup, group(lookup.keys, self._router.span)), None
        if id(lookup) not in self._returns:
            self._start_return(lookup)
        replicated, receive = self._returns.pop(id(lookup))
        return replicated, (lookup.exchanged.requested, receive())

    @torch.no_grad()
    def _start_return(self, lookup: BatchLookup) -> None:
        """Sends the gradients of the rows of other ranks. In a training step, the backward pass calls it."""
        assert lookup.groups is not None
        assert lookup.exchanged is not None
        summed = self._summed(lookup, lookup.groups)
        name = self._names.get(id(lookup), "exchange")
        self._returns[id(lookup)] = start_return(
            summed.values, lookup.exchanged, self._collectives, lookup.vectors.dtype, name
        )

    def _summed(self, lookup: BatchLookup, groups: Groups) -> SummedRowGradient:
        """Returns the gradients of one lookup, summed by the keys of `groups`."""
        flat, sources, weights = lookup.gradients(self._pooling)
        return SummedRowGradient(groups.keys, groups.sum(flat.float(), sources, weights))

    def _sum(
        self, weight: Tensor, parts: Sequence[tuple[Tensor, Tensor]], *, distinct: bool
    ) -> SummedRowGradient:
        """Sums the values of the same row over all pairs (rows, values) in `parts`.

        Pass `distinct=True` if no row occurs twice.
        """
        no_rows = torch.zeros(0, dtype=torch.int64, device=weight.device)
        no_values = torch.zeros(0, weight.shape[1], device=weight.device)
        rows = torch.cat([no_rows, *(rows for rows, _ in parts)])
        values = torch.cat([no_values, *(values for _, values in parts)])
        return SummedRowGradient(rows, values) if distinct else sum_rows(rows, values, self._router.span)
