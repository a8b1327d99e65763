"""Top-k lists, user by user: candidates crossed with a user on the device, the best kept, and how lists change from day to day."""
