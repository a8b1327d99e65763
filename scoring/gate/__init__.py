"""Whether a challenger takes the champion's place: the interval of its difference, and the decision."""
