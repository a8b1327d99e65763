"""The benchmark of a web shop's log: its generator, the plain script, the comparison of results, and the targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from benchmarks.agreement import Disagreement
from benchmarks.harness import Measured
from benchmarks.peers import plain_shop
from benchmarks.peers.plain_shop import COLUMNS, Encoding, Rows, ShopModel, make_rows, read_clicks
from benchmarks.run_contenders import ROOT
from benchmarks.shop import (
    CONFIG,
    Run,
    facts,
    kinds_of,
    memory_growth,
    parse,
    ratios_of,
    require_same_work,
    verdicts,
)
from benchmarks.shop_log import BROKEN_LINES, DAYS, ShopLog, make_log
from conf.load import load_config

SCALE = 0.02


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ShopLog:
    return make_log(tmp_path_factory.mktemp("shop"), SCALE)


@pytest.fixture(scope="module")
def clicks(log: ShopLog) -> pl.DataFrame:
    return read_clicks(log.folder, log.dates[:16])


def test_a_log_has_its_size_and_is_the_same_again(log: ShopLog, tmp_path: Path) -> None:
    again = make_log(tmp_path, SCALE)
    assert len(log.dates) == DAYS
    for dt in log.dates:
        text = (log.folder / f"clicks/{dt}.csv").read_text()
        lines = text.splitlines()[1:]
        assert len(lines) == 200
        broken = [line for line in lines if line.count(",") != 8 or 'sku"' in line or ",n/a," in line]
        assert len(broken) == BROKEN_LINES
        assert text == (again.folder / f"clicks/{dt}.csv").read_text()


def test_tables_lack_keys_and_have_others(log: ShopLog, clicks: pl.DataFrame) -> None:
    items = pl.read_csv(log.folder / "items.csv")["item"]
    in_log = clicks["item"].unique()
    assert 0 < (~in_log.is_in(items.implode())).sum() < len(in_log)
    assert (~items.is_in(in_log.implode())).sum() > 0


def test_the_configuration_describes_the_work_of_the_script() -> None:
    config = load_config(str(ROOT / CONFIG), [])
    assert config.history is not None
    assert config.history.length == plain_shop.HISTORY
    assert config.negatives is not None
    assert config.negatives.per_positive == plain_shop.NEGATIVES
    assert config.train.global_batch_size == plain_shop.BATCH
    assert config.train.epochs == 1
    assert config.score.k == plain_shop.K
    assert config.model.multi_hot.max_length == plain_shop.HISTORY
    assert config.model.settings == {"embedding_dim": 16, "bottom_mlp": [64, 16], "top_mlp": [64, 32]}


def test_rows_have_histories_unseen_negatives_and_attributes(log: ShopLog, clicks: pl.DataFrame) -> None:
    """An oracle in plain Python recomputes each row."""
    encoding = Encoding()
    rows = make_rows(log.folder, clicks, encoding, range(16))
    before: dict[str, list[str]] = {}
    histories = []
    for user, item in clicks.select("user", "item").iter_rows():
        histories.append(list(reversed(before.setdefault(user, [])[-50:])))
        before[user].append(item)
    of_day, of_user_on_day = set(), set()
    for user, item, day in clicks.select("user", "item", "day").iter_rows():
        of_day.add((item, day))
        of_user_on_day.add((user, item, day))
    brands = dict(pl.read_csv(log.folder / "items.csv").select("item", "brand").iter_rows())
    of = {column: place for place, column in enumerate(COLUMNS)}
    assert (rows.label == 1).sum() == len(clicks)
    assert 3.5 * len(clicks) < (rows.label == 0).sum() <= 4 * len(clicks)
    for row in range(0, len(rows.label), 7):
        user, item, click = rows.users[int(rows.user[row])], rows.items[int(rows.item[row])], rows.click[row]
        assert clicks["user"][int(click)] == user
        assert clicks["day"][int(click)] == rows.day[row]
        assert (item, rows.day[row]) in of_day
        assert ((user, item, rows.day[row]) in of_user_on_day) == (rows.label[row] == 1)
        assert rows.ids[row, of["item"]] == _id(encoding, "item", item)
        assert rows.ids[row, of["brand"]] == _id(encoding, "brand", brands.get(item))
        expected = [_id(encoding, "item", value) for value in histories[click]]
        assert rows.history[click].tolist() == expected + [0] * (50 - len(expected))
    assert abs(rows.dense[rows.day < 14].mean(0)).max() < 1e-3


def test_users_and_items_of_only_the_tables_are_served(log: ShopLog, clicks: pl.DataFrame) -> None:
    rows = make_rows(log.folder, clicks, Encoding(), range(16))
    users, items = (pl.read_csv(log.folder / f"{key}s.csv")[key] for key in ("user", "item"))
    assert set(rows.users) == set(clicks["user"]) | set(users)
    assert set(rows.items) == set(clicks["item"]) | set(items)
    without_clicks = [place for place, user in enumerate(rows.users) if user not in set(clicks["user"])]
    assert without_clicks
    assert not rows.latest[without_clicks].any()
    assert (rows.user_rows[without_clicks] != 1).any()  # not null: their attributes are joined


def _id(encoding: Encoding, column: str, value: str | None) -> int:
    values = encoding.values[column]
    return 1 if value is None else values.index(value) + 3 if value in values else 2


def test_the_next_run_extends_the_vocabularies(log: ShopLog) -> None:
    encoding = Encoding()
    make_rows(log.folder, read_clicks(log.folder, log.dates[:16]), encoding, range(16))
    first = {column: list(values) for column, values in encoding.values.items()}
    rows = make_rows(log.folder, read_clicks(log.folder, log.dates[1:]), encoding, [13, 14, 15])
    assert set(rows.day) == {13, 14, 15}
    for column, values in first.items():
        assert encoding.values[column][: len(values)] == values


def test_scores_of_pairs_are_those_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists compute parts of the model once per user and item; training computes whole rows."""
    users, items, device = 5, 7, 4
    monkeypatch.setattr(plain_shop, "K", items)
    model = ShopModel(Encoding({column: [str(value) for value in range(20)] for column in COLUMNS}), None, 2)
    rng = np.random.default_rng(0)
    nothing = np.zeros(0, np.int32)
    rows = Rows(
        label=nothing.astype(np.float32),
        day=nothing.astype(np.int16),
        click=nothing,
        user=nothing,
        item=nothing,
        ids=nothing,
        dense=nothing.astype(np.float32),
        history=nothing,
        latest=rng.integers(0, 23, (users, 50)).astype(np.int32),
        user_rows=rng.integers(1, 23, (users, 2)).astype(np.int32),
        item_rows=rng.integers(1, 23, (items, 3)).astype(np.int32),
        user_dense=rng.normal(size=users).astype(np.float32),
        item_dense=rng.normal(size=items).astype(np.float32),
        in_catalogue=np.ones(items, bool),
        seen=np.zeros((users, items), bool),
        users=pl.Series([f"u{user}" for user in range(users)]),
        items=pl.Series([f"i{item}" for item in range(items)]),
    )
    lists = model.lists(rows, device)
    user, item = np.repeat(np.arange(users), items), np.tile(np.arange(items), users)
    context = np.full((len(user), 1), device, np.int32)
    ids = np.concatenate([rows.user_rows[user], rows.item_rows[item], context], axis=1)
    dense = np.stack([rows.user_dense[user], rows.item_dense[item]], axis=1)
    logits = model._logits(
        torch.from_numpy(dense), torch.from_numpy(ids), torch.from_numpy(rows.latest[user])
    )
    expected = logits.sigmoid().detach().numpy().reshape(users, items)
    assert expected.std() > 1e-3
    for of_user, _, of_item, score in lists.iter_rows():
        assert score == pytest.approx(expected[int(of_user[1:]), int(of_item[1:])], abs=1e-6)


def test_the_script_learns_and_offers_nothing_seen(log: ShopLog, clicks: pl.DataFrame) -> None:
    encoding = Encoding()
    rows = make_rows(log.folder, clicks, encoding, range(16))
    model = ShopModel(encoding, None, 1)
    train = np.flatnonzero(rows.day < 14)
    before = model.auc(rows, 13)
    for _ in range(3):
        model.train(rows, train)
    assert model.auc(rows, 13) > before + 0.1
    lists = model.lists(rows, 3)
    seen = set(clicks.select("user", "item").iter_rows())
    assert not seen & set(lists.select("user_id", "item_id").iter_rows())
    assert lists["user_id"].unique().sort().equals(rows.users.sort())


def a_run(wall_s: float = 2.0, memory: int = 2**30, auc: float = 0.88) -> Run:
    measured = Measured(0, False, wall_s, 3.0, memory, memory, ((0.0, 0.0), (wall_s, 3.0)))
    return Run(measured, {"read": 0.5}, clicks=1000, rows=5000, auc=auc, users=100, entries=1000)


@pytest.mark.parametrize(
    "what, value",
    [("clicks", 900), ("rows", 4700), ("users", 10), ("entries", 100), ("auc", 0.84), ("auc", float("nan"))],
)
def test_other_work_is_a_disagreement(what: str, value: float) -> None:
    require_same_work("night", a_run(), a_run(auc=0.87), 1.0)
    with pytest.raises(Disagreement, match="AUC" if what == "auc" else what):
        require_same_work("night", replace(a_run(), **{what: value}), a_run(), 1.0)


def test_the_auc_of_a_small_log_may_differ_more() -> None:
    require_same_work("night", a_run(auc=0.75), a_run(auc=0.88), 0.1)
    with pytest.raises(Disagreement, match=r"they may differ by 0\.15"):
        require_same_work("night", a_run(auc=0.70), a_run(auc=0.88), 0.1)


def test_ratios_are_the_figures_of_the_script_divided_by_ours() -> None:
    mine, script = a_run(8.0, 2**30), a_run(2.0, 2**31)
    runs = {"ours": {"night": [mine]}, "plain_shop": {"night": [script]}}
    assert ratios_of("1x", runs) == {
        "1x_night": 0.25,
        "1x_night_cpu": 1.0,
        "1x_night_memory": 2.0,
    }
    assert facts([a_run(1.0), a_run(3.0), a_run(5.0)])["seconds"] == 3.0


def test_a_target_is_met_by_a_ratio_above_it() -> None:
    assert verdicts({"1x_night": 0.25, "20x_rows": 0.5, "20x_over_5x_memory": 0.8, "1x_rows": 0.1}) == [
        "1x_night: 0.250 (target 0.333: MISSED); ours takes 4.00 times the seconds of the script (at most 3)",
        "20x_rows: 0.500 (target 0.250: met); ours takes 2.00 times the seconds of the script (at most 4)",
        "20x_over_5x_memory: 0.800 (target 0.769: met); ours takes 1.25 times the memory of the size 5 (at most 1.3)",
    ]


def test_the_growth_of_memory_needs_two_sizes() -> None:
    small, large = {"night": {"peak_pss_gib": 1.0}}, {"night": {"peak_pss_gib": 1.25}}
    assert memory_growth({"5x": small, "20x": large}) == {"20x_over_5x_memory": 0.8}
    assert memory_growth({"1x": small, "20x": large}) == {}
    assert memory_growth({"5x": small, "20x": {}}) == {}


def test_sizes_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert kinds_of(1.0, False) == ("night", "next", "rows")
    assert kinds_of(5.0, False) == ("night",)
    assert kinds_of(5.0, True) == ("rows",)
    assert parse(["--sizes", "0.1", "20"]).sizes == [0.1, 20.0]
    for wrong in (["--sizes", "0"], ["--repeats", "0"]):
        with pytest.raises(SystemExit):
            parse(wrong)
    assert "must be above 0" in capsys.readouterr().err
