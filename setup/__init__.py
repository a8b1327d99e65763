"""Makes and checks the environment that everything else runs in. Only the standard library: it runs before any package."""
