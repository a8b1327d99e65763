"""Turns a configuration into chains of operators. The fitted chains, a workflow, compute features."""
