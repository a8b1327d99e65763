"""The lake: paths, manifests, publishing, file systems and format versions.

This package imports only conf.
"""
