"""Quality measures of predictions, such as AUC, on NumPy arrays with one value per row, in float64."""

from metrics.clicks import auc, log_loss, normalized_entropy, summarize
from metrics.ranking import map_at_k, ndcg_at_k

__all__ = ["auc", "log_loss", "map_at_k", "ndcg_at_k", "normalized_entropy", "summarize"]
