"""A package outside of the checkout, which adds an operator, a model, a rule and a source of candidates."""
