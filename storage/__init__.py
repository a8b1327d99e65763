"""The data lake of tables and models: paths, manifests, publishing, file systems and format versions.

This package imports only conf.
"""
