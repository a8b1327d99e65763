"""The same for one GPU, with the shapes of the terabyte; without a GPU they run small and measure nothing."""
