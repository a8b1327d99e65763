"""Converts a configuration to chains of operators. Fitted chains form a workflow, which computes features."""
