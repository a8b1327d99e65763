"""What a configuration asks of its columns, the fitted chains of operators, and the workflow that stores them."""
