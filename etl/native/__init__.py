"""The compiled library for text (C++), and its ctypes interface: scanning lines, looking values up, adding counts."""
