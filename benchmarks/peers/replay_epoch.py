"""The seconds of epochs of RePlay's SASRec, in the environment of requirements/benchmark-neural.txt.

    python benchmarks/peers/replay_epoch.py FILE --torch FOLDER --device DEVICE --threads N --epochs N

benchmarks/sequence_epoch.py writes the sequences and the settings into FILE. Each place is compared with its next item and items
that are drawn for the place. --torch is the folder of the package torch. The last line of standard output is a JSON list: the
seconds of each epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if "--torch" in sys.argv[:-1]:  # at the end: the other packages are those of this environment
    sys.path.append(sys.argv[sys.argv.index("--torch") + 1])

import numpy as np


def main() -> int:
    """Trains the model; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, help="the file that benchmarks/sequence_epoch.py wrote")
    parser.add_argument("--torch", required=True, help="the folder of the package torch")
    parser.add_argument("--device", required=True, help="the device of the training")
    parser.add_argument("--threads", type=int, required=True, help="number of threads of torch")
    parser.add_argument("--epochs", type=int, required=True, help="number of epochs")
    options = parser.parse_args()
    import torch

    from benchmarks.peers import replay_sequences
    from benchmarks.peers.sasrec_replay import SASRecPeer

    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    with np.load(options.file) as stored:
        sequence, starts = stored["sequence"], stored["starts"]
        setting = json.loads(str(stored["setting"]))

    class OneEpoch(SASRecPeer):
        """The model of the comparison: its items are drawn for each place."""

        @property
        def loss_settings(self) -> dict[str, Any]:
            return {"loss_type": "CE", "loss_sample_count": setting["drawn"], "negatives_sharing": False}

        def batch(self, sequences: list[Any], length: int) -> tuple[torch.Tensor, torch.Tensor]:
            ids, is_item = super().batch(sequences, length)
            return ids.to(device), is_item.to(device)

    replay_sequences.USERS_PER_BATCH = setting["sequences"]
    model = OneEpoch(sequence, starts, setting["items"], setting, 0)
    model.module.to(device)
    seconds = []
    for _ in range(options.epochs):
        began = time.perf_counter()
        model.train_epoch()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
