"""From the configuration to chains of operators, and the fitted workflow that computes features by them."""
