"""Creates and checks the Python environment of this project.

The modules that `make setup` runs use only the standard library, because they run before any package is
installed.
"""
