"""The lake: paths, manifests, publishing, file systems, format versions. It imports only conf."""
