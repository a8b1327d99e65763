"""Loops that are compiled from the C++ files of this folder, and the library that has them."""
