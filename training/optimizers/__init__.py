"""Optimizers: update dense parameters and table rows with gradients that are summed over ranks."""
