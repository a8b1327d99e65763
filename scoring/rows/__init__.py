"""Computes probabilities of feature rows: divides the rows among tasks; reads, scores and writes them."""
