"""The device that a model runs on: precision and memory."""
