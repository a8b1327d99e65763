"""Makes the lists of some users from the candidates of a run date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from conf.counted import counted
from conf.errors import ConfigError, DataError
from conf.types import Config, Score
from scoring.inputs.list_tables import list_manifests
from scoring.inputs.requests import (
    CANDIDATES,
    EXCLUDED,
    SOURCE_SCORES,
    ListRequest,
    require_listable,
)
from scoring.model.context_features import encode_context
from scoring.model.model_info import ModelInfo
from scoring.model.served_blend import blend_request, served_blend
from scoring.rules.request import rules_request
from scoring.spark.score_frames import score_lists
from storage.dataset import read_dataset
from storage.feature_spec import USER_KEY
from storage.manifest import Manifest, data_files
from storage.parquet_files import read_rows_of_keys
from storage.paths import Lake
from storage.run_context import RunContext

Unknown = Literal["raise", "skip"]


def require_length(k: int | None) -> None:
    """Raises ConfigError if `k` is neither None nor a positive integer."""
    if k is None:
        return
    if not isinstance(k, Integral) or isinstance(k, bool):
        raise ConfigError(f"k={k!r} is not an integer", "pass a positive integer")
    if k < 1:
        raise ConfigError(f"k={k} is smaller than 1", "pass a positive integer")


@dataclass(frozen=True)
class UserLists:
    """Makes lists with one model; see `Model.recommend`.

    Attributes:
        lake: the lake with the candidates.
        info: the content of model.json.
        date: the run date of the candidates.
        config: the configuration; None if it is not known.
    """

    lake: Lake
    info: ModelInfo
    date: str
    config: Config | None

    def make(
        self, keys: Sequence[str], k: int | None, context: Mapping[str, Any] | None, unknown: Unknown
    ) -> pa.Table:
        """Returns the lists of the users `keys`; arguments, result and errors are those of `recommend`."""
        require_listable(self.info.spec)
        needed = self.info.spec.workflow_version
        version = read_dataset(self.lake, self.date).workflow_version
        if version != needed:
            raise DataError(
                f"model {self.info.version} needs features of workflow {needed}, but "
                f"the run of {self.date} used workflow {version}",
                f"run build_features --run-date {self.date} --set workflow.mode=apply, then build_candidates",
            )
        users, items, candidates = list_manifests(self.lake, version, self.date)
        request = self._request(items, candidates, k, context)
        rows = self._users(keys, users, candidates, unknown, with_scores=request.blend is not None)
        lists: pa.Table = score_lists(rows, self.info.spec, request)
        return lists

    def _request(
        self, items: Manifest, candidates: Manifest, k: int | None, context: Mapping[str, Any] | None
    ) -> ListRequest:
        score, version = self.config.score if self.config else Score(), self.info.spec.workflow_version
        length = k or score.k
        values = encode_context(self.lake, self.info, score.context if context is None else context)
        files = data_files(self.lake.candidate_items(version).partition(self.date), items)
        rules = blend = None
        if self.config is not None:
            folders = {"lake": self.config.lake, "data": self.config.data}
            rules = rules_request(score.rules, length, self.date, folders)
            record = served_blend(RunContext("nightrank", self.config, self.date), candidates)
            blend = None if record is None else blend_request(record, candidates)
        return ListRequest(
            self.info.request(score), tuple(files), tuple(sorted(values.items())), length, rules, blend
        )

    def _users(
        self,
        keys: Sequence[str],
        users: Manifest,
        candidates: Manifest,
        unknown: Unknown,
        *,
        with_scores: bool,
    ) -> pa.Table:
        """Returns features and candidates of users, one row per user that is known."""
        lake, version = self.lake, self.info.spec.workflow_version
        features = [feature.name for feature in self.info.spec.scoped("user")]
        known = read_rows_of_keys(
            lake.users(version).partition(self.date), users, USER_KEY, keys, [USER_KEY, *features]
        )
        of_users = known.column(USER_KEY)
        missing = sorted(set(keys) - set(of_users.to_pylist()))
        if missing and unknown == "raise":
            raise DataError(
                f"{len(missing):,} of {counted(len(keys), 'user')} are not in {users.table} "
                f"dt={self.date}: {missing[:5]}",
                "check that ids are written as in the log, or pass unknown='skip'",
            )
        columns = [CANDIDATES, EXCLUDED, *([SOURCE_SCORES] if with_scores else [])]
        lists = read_rows_of_keys(
            lake.candidates(version).partition(self.date),
            candidates,
            USER_KEY,
            of_users.to_pylist(),
            [USER_KEY, *columns],
        )
        listed = known.filter(pc.is_in(of_users, lists.column(USER_KEY)))
        for name in columns:
            listed = listed.append_column(name, lists.column(name))
        return listed
