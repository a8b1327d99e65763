"""Exports trained models to ONNX and torch.export, for programs without this project (docs/exports.md)."""
