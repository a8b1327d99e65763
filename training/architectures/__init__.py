"""Architectures by name: each file defines one architecture, and the file's name is the architecture's name.

The module of an architecture has a function that builds the model from its settings. The settings are in the
file of the same name in training/architecture_settings, or in the module itself.

    build(settings: Settings, inputs: Inputs) -> nn.Module

The module may also be in another package, which names it by an entry point of the group `nightrank.models`
(docs/extending.md). The model takes

    dense        (B, D) float32, the dense features in the spec's order
    categorical  (B, W) int32 or int64, ids in the layout of training/models/inputs.py

and returns logits (B,) float32. B is the number of rows, D the number of dense features, and W the number of
id columns; D or W may be 0. The model must compute its last layer with `in_float32`. Create embedding tables
with `inputs.table`. The gradients of such tables are summed over ranks row by row. The gradients of all other
parameters are summed over ranks in one dense buffer. Call each table once per forward pass, and pass
`categorical` to the table unchanged.

If a model is a ClickModel (training/models/click_model.py), it can be compiled and recorded as a CUDA graph.
If a model has a method `factorize` (training/models/factorization.py), it scores lists of items faster
(docs/scoring.md), because the parts of a user and of an item are computed only once. All other models score
one joined row per pair of user and item.
"""
