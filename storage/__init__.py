"""The lake: paths, manifests, publishing, file systems, format versions. Imports conf at most."""
