"""The types of the sources of candidates, one type per source of scoring/candidates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conf.model_types import ModelConfig
from conf.raw_types import Days, PositiveInt, Seed, Strict


class AllItems(Strict):
    """The source `all_items`: every item except those excluded for a user.

    No other source can be combined with `all_items`.
    """

    source: Literal["all_items"] = Field(description="Every item.")

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return self.source


class Popular(Strict):
    """The source `popular`: the items with the most clicks.

    Items with the same number of clicks are ordered by their key.
    """

    source: Literal["popular"] = Field(description="The items with the most clicks.")
    n: PositiveInt = Field(default=500, description="Largest number of items of this source for a user.")
    segment: str | None = Field(
        default=None,
        description="Feature of scope `user`, or column of `user_attributes`. For each user, only the clicks "
        "of users with the same value in this column are counted, and items without such a click are left "
        "out. Null: the clicks of all users are counted.",
    )
    window_days: Days | None = Field(
        default=None,
        description="Only clicks of this number of days, the last of which is the run date, are counted. "
        "Null: the clicks of all days of `splits` are counted.",
    )

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return f"{self.source} by {self.segment}" if self.segment else self.source


class Covisitation(Strict):
    """The source `covisitation`: items that are similar to the items that the user clicked.

    Two items are similar if often the same users clicked both. docs/candidates.md has the formula of the
    similarity.
    """

    source: Literal["covisitation"] = Field(
        description="Items that were often clicked by the users who clicked the same items as this user."
    )
    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Only clicks of this number of days, the last of which is the run date, are counted. "
        "Null: the clicks of all days of `splits` are counted.",
    )
    clicks_per_user: PositiveInt = Field(
        default=50,
        description="Only this number of distinct items of a user, the ones clicked last, are used. This "
        "limits the number of item pairs of very active users.",
    )
    neighbours: PositiveInt = Field(
        default=100, description="For each item, only this number of items most similar to it are used."
    )

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return self.source


class ItemKnn(Strict):
    """The source `item_knn`: the nearest neighbours, by cosine, of the items that the user clicked.

    Unlike in `covisitation`, all users count equally, and the similarity of items that few users clicked is
    reduced. docs/candidates.md has the formula of the similarity.
    """

    source: Literal["item_knn"] = Field(
        description="Items whose users are most similar to those of the items that this user clicked."
    )
    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Only clicks of this number of days, the last of which is the run date, are counted. "
        "Null: the clicks of all days of `splits` are counted.",
    )
    clicks_per_user: PositiveInt = Field(
        default=200,
        description="Only this number of distinct items of a user, the ones clicked last, are used. This "
        "limits the number of item pairs of very active users.",
    )
    neighbours: PositiveInt = Field(
        default=100, description="For each item, only this number of items most similar to it are used."
    )
    shrink: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0,
        description="Number of users that is added to the denominator of the cosine. A larger value reduces "
        "the similarity of items that few users clicked.",
    )

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return self.source


class Ease(Strict):
    """The source `ease`: an item-to-item linear model with a closed-form solution (H. Steck, WWW 2019).

    The model predicts the items of a user from the user's other items. docs/candidates.md has its formula.
    """

    source: Literal["ease"] = Field(
        description="Items that an item-to-item linear model (EASE, Steck 2019) predicts from the user's "
        "clicked items."
    )
    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Only clicks of this number of days, the last of which is the run date, are counted. "
        "Null: the clicks of all days of `splits` are counted.",
    )
    l2: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=500.0,
        description="Weight of the L2 penalty (λ of the paper). The paper uses 200 to 1000. A larger value "
        "suits logs with more users.",
    )
    max_items: PositiveInt = Field(
        default=20_000,
        description="Largest number of items with clicks. If more items have clicks, build_candidates ends "
        "with an error. With m such items, one worker needs 16·m² bytes of memory, and each worker that "
        "makes lists needs 4·m² bytes.",
    )

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return self.source


class Als(Strict):
    """The source `als`: a matrix factorization of the clicks by alternating least squares.

    The factors are those of Spark MLlib for implicit feedback (Y. Hu, Y. Koren, C. Volinsky, ICDM 2008).
    """

    source: Literal["als"] = Field(
        description="Items that a matrix factorization (implicit ALS, as in Spark MLlib) finds."
    )
    n: PositiveInt = Field(default=100, description="Largest number of items of this source for a user.")
    window_days: Days | None = Field(
        default=None,
        description="Only clicks of this number of days, the last of which is the run date, are counted. "
        "Null: the clicks of all days of `splits` are counted.",
    )
    rank: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=32, description="Number of factors: length of the vectors of users and items."
    )
    iterations: PositiveInt = Field(
        default=10, description="Number of iterations. Each computes all user and then all item vectors."
    )
    regularization: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=0.1,
        description="Weight of the L2 penalty. MLlib multiplies it by the number of clicked items of a user, "
        "or of users of an item.",
    )
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=10.0,
        description="Growth of the confidence: c clicks of a user on an item have the confidence "
        "1 + alpha · c, and no click has the confidence 1.",
    )
    seed: Seed = Field(default=0, description="Seed of the initial vectors.")

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return self.source


class Retrieval(Strict):
    """The source `retrieval`: the items whose vectors have the largest dot product with the user's vector.

    The vectors come from a model of the architecture two_tower, sasrec, bert4rec or mult_vae, or of your own
    architecture with vectors (docs/extending.md). train_retriever trains this model with the settings of the
    section `train`.
    """

    source: Literal["retrieval"] = Field(description="The items that a model with vectors finds.")
    n: PositiveInt = Field(default=200, description="Largest number of items of this source for a user.")
    model: ModelConfig = Field(
        description="The model, of an architecture with vectors of users and items: a section with the "
        "keys of `model`, or the name of a model file."
    )
    search: Literal["auto", "exact", "approximate"] = Field(
        default="auto",
        description="`exact`: a user's vector is compared with the vectors of all items. `approximate`: the "
        "items are divided into clusters, and the user is compared only with the items of the `probes` "
        "nearest clusters. `auto`: approximate search on a CPU if there are more than 100,000 items, "
        "otherwise exact search.",
    )
    probes: PositiveInt = Field(
        default=64,
        description="Number of clusters that approximate search reads for a user. There are about "
        "2 · √items clusters. More probes find more of the nearest items, and take more time.",
    )

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return self.source


BuiltInSource = AllItems | Popular | Covisitation | ItemKnn | Ease | Als | Retrieval
