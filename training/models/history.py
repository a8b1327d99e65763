"""The user's history as an input: its columns, and the vectors of its items.

An item's vector is a row of the table. Except in Mult-VAE, an item has the same vector in a history and as
the item of a row.

Notation: B rows, S histories, W columns of ids, C features that are ids, L positions in a history, E numbers
per vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from conf.errors import ConfigError
from storage.feature_spec import PAD_ID
from training.models.inputs import Inputs
from training.settings import Features
from training.settings.shared_settings import HistorySettings, check_history, item_of


@dataclass(frozen=True)
class Layout:
    """The positions of the features in the inputs of the model.

    Attributes:
        item: index of the item's feature among the features that are ids. It is also the index of its column.
        history: index of the history's feature among the features that are ids.
        columns: the columns of the history in the categorical matrix.
        ages: the columns of the ages of the history's items; None if the model reads no ages.
        num_ages: number of different age ids.
        cardinalities: number of rows of each feature in the table. If the items of histories use the table
            rows of the item's feature, the history's feature has only one row, for padding.
    """

    item: int
    history: int
    columns: slice
    cardinalities: list[int]
    ages: slice | None = None
    num_ages: int = 0

    @classmethod
    def of(
        cls, architecture: str, settings: HistorySettings, inputs: Inputs, *, shared: bool = True
    ) -> Layout:
        """Returns the layout. Raises ConfigError if the settings do not fit the features.

        `shared` says whether the items of histories use the table rows of the item's feature, and have no
        rows of their own.
        """
        names, num_single = list(inputs.names), inputs.num_embedded - len(inputs.list_lengths)
        features = Features(names[:0], names[:num_single], names[num_single:])
        if settings.item is None and settings.history in features.lists:
            features = replace(features, items=_with_ids_of(settings.history, inputs, features))
        check_history(settings, features)
        item_name = item_of(settings, features)
        item, history = names.index(item_name), names.index(settings.history)
        scopes = inputs.embedded_scopes[item], inputs.embedded_scopes[history]
        if scopes != ("item", "user"):
            raise ConfigError(
                f"the scopes of {item_name} and {settings.history} are {scopes[0]} and {scopes[1]}, but "
                f"architecture {architecture} needs the scopes item and user",
                f"list {item_name} in scopes.item, and {settings.history} in scopes.user",
            )
        cardinalities = list(inputs.cardinalities)
        if cardinalities[item] != cardinalities[history]:
            raise ConfigError(
                f"{item_name} has {cardinalities[item]} ids, but {settings.history} has "
                f"{cardinalities[history]}, so they do not have the same vocabulary",
                "give `categorify` the same `share` in the groups of both features, and `counts: false` in "
                "the group of the history",
            )
        if shared:
            cardinalities[history] = 1
        return cls(item, history, _columns_of(history, inputs), cardinalities)

    def with_ages(self, architecture: str, name: str, inputs: Inputs) -> Layout:
        """Returns the layout of a model that reads the feature `name` as the ages of the history's items.

        The ages need no rows in the table, so the table has only one row, for padding, for this feature.
        Raises ConfigError if the feature is not a list of the user with as many columns as the history.
        """
        feature = inputs.names.index(name)
        if inputs.embedded_scopes[feature] != "user":
            raise ConfigError(
                f"the scope of {name} is {inputs.embedded_scopes[feature]}, but architecture {architecture} "
                "needs the scope user",
                f"list {name} in scopes.user",
            )
        columns = _columns_of(feature, inputs)
        if columns.stop - columns.start != self.length:
            raise ConfigError(
                f"lists of {name} have the length {columns.stop - columns.start}, but lists of the history "
                f"have the length {self.length}",
                f"set the same length for both, as in model.multi_hot.lengths: {{{name}: {self.length}}}",
            )
        cardinalities = list(self.cardinalities)
        num_ages, cardinalities[feature] = cardinalities[feature], 1
        return replace(self, cardinalities=cardinalities, ages=columns, num_ages=num_ages)

    @property
    def length(self) -> int:
        """Returns L, the number of columns of the history."""
        return self.columns.stop - self.columns.start


def _columns_of(feature: int, inputs: Inputs) -> slice:
    """Returns the columns of a list feature in the categorical matrix."""
    num_single = inputs.num_embedded - len(inputs.list_lengths)
    place = feature - num_single
    first = num_single + sum(inputs.list_lengths[:place])
    return slice(first, first + inputs.list_lengths[place])


def _with_ids_of(history: str, inputs: Inputs, features: Features) -> list[str]:
    """Returns the features that may be the item's feature, for a model built from a FeatureSpec only.

    A training run does not need this guess, because its configuration names the item's feature. The item's
    feature has one id per row, and its cardinality equals that of the history. If several features meet these
    conditions, those of scope `item` are preferred. If none meets them, all features with one id per row are
    returned.
    """
    cardinalities = dict(zip(inputs.names, inputs.cardinalities, strict=True))
    scopes = dict(zip(inputs.names, inputs.embedded_scopes, strict=True))
    same = [name for name in features.ids if cardinalities[name] == cardinalities[history]]
    return [name for name in same if scopes[name] == "item"] or same or list(features.ids)


class HistoryModel(nn.Module):
    """A model with a table of embeddings, which also has the vectors of the items in histories.

    Args:
        layout: the positions of the item and the history in the inputs.
        dim: E.
        inputs: the inputs of the model.
        deviation: standard deviation of the initial vectors.
    """

    def __init__(self, layout: Layout, dim: int, inputs: Inputs, deviation: float) -> None:
        super().__init__()
        self.layout = layout
        self.embedding = inputs.tables.table(
            layout.cardinalities, dim, inputs.list_lengths, inputs.pooling, inputs.names, by_ftrl=False
        )
        self.embedding.init_normal(deviation)

    def history_vectors(self, histories: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the vectors of the items of `histories` (S, P) int.

        Returns:
            (S, P, E) float32, zeros at padding, and (S, P) bool, whether a position has an item.
        """
        is_item = histories != PAD_ID
        if torch.compiler.is_exporting():  # in an exported program, no shape may depend on ids
            vectors = self.embedding.feature_vectors(histories.flatten(), self.layout.item)
            return vectors.view(*histories.shape, -1) * is_item.unsqueeze(2), is_item
        places = is_item.flatten().nonzero().squeeze(1)
        vectors = self.embedding.feature_vectors(histories.flatten()[places], self.layout.item)
        values = vectors.new_zeros(histories.numel(), vectors.shape[1]).index_copy(0, places, vectors)
        return values.view(*histories.shape, -1), is_item

    def separate(self, categorical: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the histories (B, L), and the vectors (B, C, E) of the features of `categorical` (B, W).

        The vectors of the history and of its ages are zero. If the model reads ages, each history is followed
        by its ages: (B, 2 L).
        """
        others = categorical.clone()
        others[:, self.layout.columns] = PAD_ID
        if self.layout.ages is not None:
            others[:, self.layout.ages] = PAD_ID
        return self.histories(categorical), self.embedding(others)

    def histories(self, categorical: Tensor) -> Tensor:
        """Returns the ids of each row's history, (B, L) or, with ages, (B, 2 L). See `separate`."""
        items = categorical[:, self.layout.columns]
        if self.layout.ages is None:
            return items
        return torch.cat([items, categorical[:, self.layout.ages]], dim=1)
