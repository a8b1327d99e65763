"""Exchanges JSON values and errors between ranks. Every rank must make these calls in the same order."""

from __future__ import annotations

import json
from typing import Any

import torch

from conf import errors
from conf.errors import NightrankError
from training.distributed.collectives import Collectives


def gather_json(collectives: Collectives, value: Any) -> list[Any]:
    """Returns the JSON values of all ranks, in rank order. The call waits until all ranks have made it."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths, texts = collectives.allgather(torch.tensor([len(text)]), text)
    return [json.loads(part.numpy().tobytes()) for part in texts.split(lengths.tolist())]


def raise_on_all_ranks(collectives: Collectives, error: NightrankError | None) -> None:
    """Raises the first error of any rank on all ranks, so that no rank waits for the others."""
    fields = None if error is None else [type(error).__name__, error.problem, error.remedy]
    for rank, fields_of_rank in enumerate(gather_json(collectives, fields)):
        if fields_of_rank is not None:
            kind, problem, remedy = fields_of_rank
            raise getattr(errors, kind)(f"rank {rank}: {problem}", remedy) from error
