"""The library of C++ loops: the source files, and the Python module that loads the compiled library."""
