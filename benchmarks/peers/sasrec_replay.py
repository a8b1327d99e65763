"""SASRec, as the library RePlay implements it.

Source: Kang and McAuley 2018, "Self-Attentive Sequential Recommendation". RePlay trains all places of a user's sequence at once,
with the cross-entropy over all items or over drawn items. A model is trained on the choices of the train split; at the test, a
sequence ends with the validation item.
"""

from __future__ import annotations

from typing import Any

import torch
from replay.data.nn import TensorSchema
from replay.models.nn.sequential.sasrec import SasRec

from benchmarks.list_measures import Lists
from benchmarks.peers.replay_sequences import ITEM, SequencePeer


class SASRecPeer(SequencePeer):
    """A model in training; `SequencePeer` describes the arguments."""

    def _make(self, schema: TensorSchema, setting: dict[str, Any]) -> SasRec:
        return SasRec(
            schema,
            block_count=setting.get("blocks", 2),
            head_count=1,
            hidden_size=setting["width"],
            max_seq_len=self._places,
            dropout_rate=setting["dropout"],
            **self.loss_settings,
        )

    def _loss(self, sequences: list[Lists], step: int) -> torch.Tensor:
        ids, is_item = self.batch([own[:-1] for own in sequences], self._places)
        labels, _ = self.batch([own[1:] for own in sequences], self._places)
        batch = {
            "feature_tensor": {ITEM: ids},
            "padding_mask": is_item,
            "positive_labels": labels,
            "target_padding_mask": is_item,
        }
        return self.module.training_step(batch, step)

    def _predict(self, sequences: list[Lists]) -> torch.Tensor:
        ids, is_item = self.batch(sequences, self._places)
        return self.module.predict({"feature_tensor": {ITEM: ids}, "padding_mask": is_item})
