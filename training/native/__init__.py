"""Loops that are compiled from the C++ files of this folder, and the Python functions that call them."""
