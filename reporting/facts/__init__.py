"""Reads the facts that reports show from the manifests of the lake."""
