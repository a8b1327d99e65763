"""Training on one rank: the plan, the steps, validation, early stopping, checks of the loss."""
