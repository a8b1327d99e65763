"""Writes models to a model repository of Triton Inference Server (docs/exports.md)."""
