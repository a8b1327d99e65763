"""What a support engineer asks about one user: the list, why each item is in it, and what the user clicked."""
