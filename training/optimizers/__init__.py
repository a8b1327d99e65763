"""Updates of dense parameters and of table rows by gradients that are summed over ranks."""
