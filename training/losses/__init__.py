"""The losses of a step. Each file is one loss. The file's name is the loss's name in `train.loss`.

A package adds a loss by an entry point of the group `nightrank.losses`. The module of a loss contains

    class Settings(LossSettings)       the keys of the loss. Its docstring describes the loss
    mean_loss(settings: Settings, compared: Tensor | Vectors, batch: Batch) -> Tensor
                                       returns this rank's share of the mean loss of a global batch, a scalar

`compared` are the logits (L,) float32 of the rows of `batch` (conf/train_types.py has the values of
`Settings.compares`), or the vectors of users and items for a loss that compares them
(training/data/batch.py). Every job imports these modules to read the settings, so a module imports torch only
inside its functions.

Notation: This rank has L rows, in groups of G rows: a positive row, then its negatives. w is the weight of a
row. N is `Batch.global_weight`: the expected number of groups in the global batch or, if rows have weights,
the expected sum of the weights of the positive rows. Without groups, N is the number of rows in the global
batch, or the sum of their weights. Losses over vectors have P positive rows, I items, and E numbers per
vector.
"""
