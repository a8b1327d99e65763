"""Which rows are train, validation and test, and which negatives are drawn for them."""
