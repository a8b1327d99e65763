"""The facts that reports show, read from the manifests of the lake."""
