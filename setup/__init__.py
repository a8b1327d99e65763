"""Creates and checks the environment that everything else runs in.

The modules that `make setup` runs use only the standard library, because no package is installed yet.
"""
