"""A workflow that is fitted on a frame learns and computes what build_features does from the same rows."""

from __future__ import annotations

from typing import Any

import pytest

from etl.ops.tables import VOCABULARY
from etl.raw.splits import DAY
from storage.paths import LakePaths
from tests.etl.ops.case import Case, assert_same
from tests.etl.ops.on_blocks import features_of_blocks, table_of
from tests.etl.ops.on_frames import EXTERNAL, as_table, learned, name_of, new_workflow, values_of
from tests.etl.ops.rows import TEST_DAY


@pytest.mark.every_operator
def test_every_operator_learns_and_computes_what_build_features_does(case: Case) -> None:
    # With max_age_days, values of the first days are old; all rows of a frame are of one day (test_fit.py).
    groups = [
        group
        for group in case.groups
        if not EXTERNAL & set(map(name_of, group["ops"])) and "max_age_days" not in str(group)
    ]
    if not groups:
        pytest.skip("the operator cannot be fitted on a frame")
    train = [row for row in case.by_row_id if row[DAY] != TEST_DAY]
    others = [row for row in case.by_row_id if row[DAY] == TEST_DAY]
    workflow = new_workflow(groups)
    features = values_of(workflow.fit_transform(as_table(train)))
    local: Any = workflow._require_fitted()
    published = case.workflow
    chains = [learned(chain) for chain in local.chains]
    assert chains == [text for text in map(learned, published.chains) if text in chains]
    known = {feature.name: feature for feature in published.spec.features}
    assert list(local.spec.features) == [known[feature.name] for feature in local.spec.features]
    lake = LakePaths(case.config.lake)
    stored = table_of(lake, published.version, VOCABULARY).to_pandas() if local.local.vocabularies else None
    for name, entries in local.local.vocabularies.items():
        assert stored is not None
        rows = stored[stored.column == name].sort_values("id")[["value", "id", "count"]]
        pairs = list(rows.itertuples(index=False, name=None))
        assert (
            list(zip(*(entries[key].to_pylist() for key in ("value", "id", "count")), strict=True)) == pairs
        )
        assert local.vocabularies[name]["entries"] == len(pairs)
    for name in set(local.local.names) - {VOCABULARY}:
        mine, expected_rows = table_of(lake, published.version, name), local.local.keyed(name)[1]
        assert not len(expected_rows) or mine.column_names == expected_rows.column_names
        assert repr(mine.to_pylist()) == repr(expected_rows.to_pylist()), name
    encoded = values_of(workflow.transform(as_table(others)))
    expected = features_of_blocks(published, case.by_row_id)
    assert_same(
        {name: [*values, *encoded[name]] for name, values in features.items()},
        {name: expected[name] for name in features},
    )
