"""The lake: paths, manifests, publishing, file systems, format versions. Imports no other package than conf."""
