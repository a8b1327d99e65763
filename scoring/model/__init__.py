"""The model that scores: the champion and its description, the predictor on its device, micro-batches."""
