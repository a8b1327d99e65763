"""BERT4Rec, as the library RePlay implements it.

Source: Sun et al. 2019, "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from Transformer". In a
step, items of the users' sequences are masked at random, and the model predicts them from the other items. A model is trained on
the choices of the train split; at the test, a sequence ends with the validation item and a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from replay.data.nn import TensorSchema
from replay.models.nn.sequential.bert4rec import Bert4Rec
from replay.models.nn.sequential.bert4rec.dataset import Bert4RecUniformMasker

from benchmarks.list_measures import Lists
from benchmarks.peers.replay_sequences import ITEM, SequencePeer


class BERT4RecPeer(SequencePeer):
    """A model in training; `SequencePeer` describes the arguments. `masked` is the probability that an item is masked."""

    reads_padding = False

    def _make(self, schema: TensorSchema, setting: dict[str, Any]) -> Bert4Rec:
        self._masker = Bert4RecUniformMasker(setting["masked"])
        return Bert4Rec(
            schema,
            block_count=2,
            head_count=2,  # as the paper
            hidden_size=setting["width"],
            max_seq_len=self._places,
            dropout_rate=setting["dropout"],
            enable_embedding_tying=True,  # as the paper's last layer
            **self.loss_settings,
        )

    def _loss(self, sequences: list[Lists], step: int) -> torch.Tensor:
        ids, is_item = self.batch(sequences, self._places)
        batch = {
            "inputs": {ITEM: ids},
            "pad_mask": is_item,
            "token_mask": torch.stack([self._masker.mask(row) for row in is_item]),
            "positive_labels": ids,
        }
        return self.module.training_step(batch, step)

    def _predict(self, sequences: list[Lists]) -> torch.Tensor:
        # RePlay appends the mask to a sequence that is shorter than max_seq_len.
        ids, is_item = self.batch(sequences, self._places - 1)
        return self.module.predict({"inputs": {ITEM: ids}, "pad_mask": is_item})
