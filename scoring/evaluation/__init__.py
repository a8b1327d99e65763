"""What predictions, groups and lists are worth, against clicks."""
