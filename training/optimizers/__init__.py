"""What turns gradients, summed over ranks, into new weights: of dense parameters, and of the rows of tables."""
