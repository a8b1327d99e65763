"""Communication of ranks: collectives, and the progress that rank 0 sends to the driver."""
