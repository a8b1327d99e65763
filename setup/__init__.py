"""Makes and checks the environment that everything else runs in.

What `make setup` runs uses only the standard library, because no package is installed yet.
"""
