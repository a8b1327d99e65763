"""What ranks tell each other when they write and read files together. Every rank makes these calls, in one order."""

from __future__ import annotations

import json
from typing import Any

import torch

from conf import errors
from conf.errors import NightrankError
from training.distributed.collectives import Collectives


def gather_json(collectives: Collectives, value: Any) -> list[Any]:
    """The JSON values of all ranks, in their order. It returns when every rank has called it: a barrier."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths, texts = collectives.allgather(torch.tensor([len(text)]), text)
    return [json.loads(part.numpy().tobytes()) for part in texts.split(lengths.tolist())]


def raise_on_all_ranks(collectives: Collectives, error: NightrankError | None) -> None:
    """Raises on all ranks the first error that any of them brings: none goes on alone, to wait for the others."""
    mine = None if error is None else [type(error).__name__, error.problem, error.remedy]
    for rank, theirs in enumerate(gather_json(collectives, mine)):
        if theirs is not None:
            kind, problem, remedy = theirs
            raise getattr(errors, kind)(f"rank {rank}: {problem}", remedy) from error
