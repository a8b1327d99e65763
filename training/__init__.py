"""Training: the loader, the models, the loop that runs on every rank, and the registry of trained models."""

from conf.process import limit_spinning

limit_spinning()
