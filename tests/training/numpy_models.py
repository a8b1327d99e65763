"""Every architecture's logit of one row, in NumPy, written from the equations of its paper.

A row is its dense values (D,) and, for each feature made of ids, the list of its ids (one id where it is no
list).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = Mapping[str, NDArray]


@dataclass(frozen=True)
class Network:
    """A model's weights and settings. `scopes` are those of dense features, and of features made of ids."""

    state: State
    cardinalities: list[int]
    pooling: str
    settings: Mapping[str, Any]
    scopes: tuple[Sequence[str], Sequence[str]] = ((), ())

    def logit(self, architecture: str, dense: NDArray, ids: list[list[int]]) -> float:
        return float(getattr(self, architecture)(dense, ids))

    def logistic_regression(self, dense: NDArray, ids: list[list[int]], prefix: str = "") -> float:
        total = self.state[f"{prefix}bias"] + sum(dense * self.state[f"{prefix}weights"])
        return total + sum(vector[0] for vector in self.vectors(ids, f"{prefix}embedding.weight"))

    def dlrm(self, dense: NDArray, ids: list[list[int]]) -> float:
        vectors = self.vectors(ids, "embedding.weight")
        if len(dense):
            vectors.insert(0, self.relu_layers("bottom", dense))
        products = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        first = vectors[0] if len(dense) or not products else np.zeros(0)
        return self.affine("logit", self.relu_layers("top", np.concatenate([first, products])))[0]

    def wide_and_deep(self, dense: NDArray, ids: list[list[int]]) -> float:
        a0 = np.concatenate([*self.vectors(ids, "embedding.weight"), dense])
        deep = self.affine("logit", self.relu_layers("deep", a0))[0]
        return self.logistic_regression(dense, ids, "wide.") + deep

    def deepfm(self, dense: NDArray, ids: list[list[int]]) -> float:
        fields = [x * v for x, v in zip(dense, self.state["dense_vectors"], strict=True)]
        fields += self.vectors(ids, "embedding.weight")
        pairs = [(i, j) for i in range(len(fields)) for j in range(i + 1, len(fields))]
        r = self.state.get("field_weights.weights", np.ones(len(pairs)))  # equation of FwFM
        second = sum(weight * (fields[i] @ fields[j]) for weight, (i, j) in zip(r, pairs, strict=True))
        dnn = self.affine("logit", self.relu_layers("deep", np.concatenate(fields)))[0]
        return self.logistic_regression(dense, ids, "first_order.") + second + dnn

    def neumf(self, dense: NDArray, ids: list[list[int]]) -> float:
        """Equations 8 to 12; the context is the item's, and a pair's features are the MLP's alone."""
        fields = [x * v for x, v in zip(dense, self.state["dense_vectors"], strict=True)]
        fields += self.vectors(ids, "embedding.weight")
        size, scopes = self.settings["gmf_dim"], [*self.scopes[0], *self.scopes[1]]
        p, q = np.zeros(size), np.zeros(size)
        for field, scope in zip(fields, scopes, strict=True):
            p += field[:size] * (scope == "user")
            q += field[:size] * (scope in ("item", "context"))
        a = self.relu_layers("deep", np.concatenate([field[size:] for field in fields]))
        h = np.concatenate([self.state["gmf_weights"], self.state["logit.weight"][0]])
        return h @ np.concatenate([p * q, a]) + self.state["logit.bias"][0]

    def dcn_v2(self, dense: NDArray, ids: list[list[int]]) -> float:
        x0 = np.concatenate([self.relu_layers("bottom", dense), *self.vectors(ids, "embedding.weight")])
        x = x0
        for layer in range(self.settings["cross_layers"]):
            if self.settings["cross_rank"] is None:
                x = (
                    x0 * (self.state[f"cross.{layer}.up.weight"] @ x + self.state[f"cross.{layer}.up.bias"])
                    + x
                )
            else:
                u, v = self.state[f"cross.{layer}.up.weight"], self.state[f"cross.{layer}.down.weight"].T
                assert u.shape == v.shape == (len(x0), self.settings["cross_rank"])
                x = x0 * (u @ (v.T @ x) + self.state[f"cross.{layer}.up.bias"]) + x
        if self.settings["structure"] == "parallel":
            return self.affine("logit", np.concatenate([x, self.relu_layers("deep", x0)]))[0]
        return self.affine("logit", self.relu_layers("deep", x))[0]

    def two_tower(self, dense: NDArray, ids: list[list[int]]) -> float:
        return self.tower("user", dense, ids) @ self.tower("item", dense, ids) + self.state["bias"]

    def din(self, dense: NDArray, ids: list[list[int]]) -> float:
        """Equation 3. The settings `item` and `history` are the positions of these features here.

        The table has the rows of the history's items once, at the item's feature.
        """
        item, history = self.settings["item"], self.settings["history"]
        rows = self.state["embedding.weight"][sum(self.cardinalities[:item]) :]
        (v,) = (rows[id_] for id_ in ids[item])
        pooled = np.zeros(len(v))
        for id_ in ids[history]:
            e = rows[id_]
            hidden = self.prelu_layers("attention.hidden", np.concatenate([v, e, v - e, v * e]))
            pooled += self.affine("attention.weight", hidden)[0] * e
        others = [[] if feature == history else id_list for feature, id_list in enumerate(ids)]
        fields = self.vectors(others, "embedding.weight")
        fields[history] = pooled
        return self.affine("logit", self.prelu_layers("deep", np.concatenate([*fields, dense])))[0]

    def tower(self, name: str, dense: NDArray, ids: list[list[int]]) -> NDArray:
        """The vector of one side of a row; the context is the user's."""
        side = ("user", "context") if name == "user" else ("item",)
        fields = zip(self.vectors(ids, "embedding.weight"), self.scopes[1], strict=True)
        inputs = [x for x, scope in zip(dense, self.scopes[0], strict=True) if scope in side]
        inputs += [x for field, scope in fields if scope in side for x in field]
        return self.affine(f"{name}.out", self.relu_layers(f"{name}.hidden", np.array(inputs)))

    def vectors(self, ids: list[list[int]], table: str) -> list[NDArray]:
        """One vector a feature: its ids' rows, pooled; zeros where there are none."""
        vectors = []
        for feature, id_list in enumerate(ids):
            start = sum(self.cardinalities[:feature])
            total = np.zeros(self.state[table].shape[1])
            for id_ in id_list:
                total = total + self.state[table][start + id_]
            vectors.append(total / len(id_list) if id_list and self.pooling == "mean" else total)
        return vectors

    def affine(self, layer: str, x: NDArray) -> NDArray:
        return self.state[f"{layer}.weight"] @ x + self.state[f"{layer}.bias"]

    def relu_layers(self, prefix: str, x: NDArray) -> NDArray:
        for number in self.layers(prefix):
            x = np.maximum(self.affine(f"{prefix}.{number}", x), 0)
        return x

    def prelu_layers(self, prefix: str, x: NDArray) -> NDArray:
        """PReLU(y) = max(0, y) + slope * min(0, y) (He et al. 2015, equation 1), a slope per number."""
        for number in self.layers(prefix):
            if f"{prefix}.{number}.bias" in self.state:
                x = self.affine(f"{prefix}.{number}", x)
            else:
                x = np.maximum(x, 0) + self.state[f"{prefix}.{number}.weight"] * np.minimum(x, 0)
        return x

    def layers(self, prefix: str) -> list[int]:
        """The numbers of the layers with weights."""
        names = [name for name in self.state if name.startswith(f"{prefix}.")]
        return sorted({int(name[len(prefix) + 1 :].split(".")[0]) for name in names})
