"""Training: the loader, the models, the loop that runs on every rank, and the registry of trained models."""
