"""docs/python.md: its examples run, one after the other, and give what the page says."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest

import nightrank
from tests.nightrank.conftest import COLUMNS, RUN_DATE, World
from tests.processes import ROOT

pytestmark = pytest.mark.processes


def test_the_examples_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.folder)
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 11
    text = "\n".join(blocks).replace("conf/datasets/generated.yaml", str(world.config))
    names: dict[str, Any] = {}
    exec(compile(text, "docs/python.md", "exec"), names)
    assert names["lake"].dates("recommendations") == [RUN_DATE]
    columns = ["user_id", "position", "item_id", "score", "reason", "model_version", "workflow_version"]
    assert list(names["frame"]) == columns
    assert names["columns"] == COLUMNS
    assert 980 < len(names["features"]) == len(names["probabilities"]) <= 1000
    assert list(names["train"]) == ["label", "C1", "C2", "I1", "C2_te"]
    assert len(names["train"]) == len(names["features"])
    assert names["trained"].metrics[-1]["epoch"] == 2
    loaded = nightrank.Model.load("own_model")
    pd.testing.assert_series_equal(
        loaded.score(names["validation_rows"]), names["trained"].score(names["validation_rows"])
    )
    assert names["workflow"].decode("C1", [0, 1, 2]) == [None, None, None]
    (most,) = names["workflow"].decode("C1", [3])
    assert most in set(names["raw"]["C1"])
    assert names["classifier"].predict_proba(names["valid"][names["names"]]).shape == (len(names["valid"]), 2)
    assert set(names["search"].best_params_) == {"embedding_learning_rate"}
    assert set(names["importance"]["feature"]) == {"C1", "C2", "I1"}
    assert len(names["axes"].patches) == 2  # one bar for each column
    assert names["measured"]["users"] > 5
    assert names["measured"]["ndcg"].low <= names["measured"]["ndcg"].high
    lists = names["model"].recommend(names["some"], k=5).to_pandas()
    assert list(lists) == columns[:5]
    published = names["frame"][names["frame"]["user_id"].isin(names["some"])]
    published = published[published["position"] <= 5].reset_index(drop=True)
    # The number of users that are scored together changes the last bit of some scores.
    pd.testing.assert_frame_equal(lists, published[columns[:5]], check_exact=False, rtol=1e-6)
