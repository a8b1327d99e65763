"""Clusters: the unpacked archive and its cluster live as long as this folder is tested."""
