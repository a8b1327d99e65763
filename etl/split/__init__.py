"""Which rows are train, validation and test, and the negatives that are drawn for them."""
