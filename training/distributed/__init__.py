"""What ranks do together: collectives, and the progress that rank 0 sends to the driver."""
