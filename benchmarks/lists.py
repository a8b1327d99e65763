"""Compares our lists with those of popularity and of well-known models of other projects on logs of choices.

    .venv/bin/python benchmarks/lists.py --data FOLDER [--log FILE …] [--only NAME …] [--config FILE] [--quick]

FOLDER has the files of MovieLens 100k (ml-100k.inter, .user, .item) and of Amazon Beauty (beauty.txt), in the
folder or in subfolders. A file that is missing is skipped. A FILE has lines `user item` in the order of time, or
`user item time`; or it is a file `.inter` of RecBole with user_id, item_id and timestamp. With --lake, the script
measures the lists of a finished run of nightly instead of running nightly. A complete run takes hours; with --keep
FOLDER, a run that was interrupted continues if it is started again. --without LOG-PEER leaves out a peer on one log.

Protocol: leave-last-out and full ranking. A user's rows are ordered by (time, row number). The last choice is the
test item, and the choice before it the validation item. All items are ranked, except those that the user rated
before the test, whatever the rating. All models are fitted on the train split. At the test, the histories that the
peers read also hold the validation item; the last column has the NDCG@10 without it. Popularity and BPR use no
history. Our model gets the input that its configuration names. Cold users, who have no row in the train split, are
measured separately. Equal scores are ordered by item.

Each peer takes the setting with the best NDCG@10 on the validation items: out of eight settings, or out of four for
SASRec and BERT4Rec. If the train split has more than 100,000 choices, the neural peers have only two settings. Models
with random numbers are trained with several seeds, and their figures are means over the seeds. The interval is the 95% bootstrap
interval of our NDCG@10 minus the peer's, resampled by user. A ratio is our NDCG@10 divided by the peer's. This script
computes the splits and our figures from the raw log, and fails if measure_recommendations published others.

A second table has the figures of two sampled protocols (list_samples.py), which rank the test item of each warm user
among about a hundred drawn items. It relates our figures to published ones.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.list_logs import Log, find_beauty, find_movielens, read_choices
from benchmarks.list_measures import Matrix, gains, mean_figures, paired_interval
from benchmarks.list_ours import lists_of_lakes, run_ours
from benchmarks.list_parts import Parts, Peer
from benchmarks.list_peers import run_peers
from benchmarks.list_samples import SAMPLES, sampled_figures
from benchmarks.list_task import Task, make_task
from benchmarks.report import machine, summary_line, table

K = 10
QUICK = ("train.epochs=1",)


@dataclass
class ChosenParts(Parts):
    """The parts of a run in which some peers do not run on some logs.

    Attributes:
        without: names of parts that are not computed.
    """

    without: tuple[str, ...] = ()

    def part(self, name: str, decides: Mapping[str, Any], compute: Callable[[], Peer]) -> Peer:
        """See `Parts`. A peer that is left out has a reason instead of lists."""
        if name in self.without:
            return Peer(facts={"reason": f"left out by --without={name}"})
        return super().part(name, decides, compute)


@dataclass(frozen=True)
class Measured:
    """The result on one log.

    Attributes:
        figures: of each contender that ran, by name, as JSON values; ours first.
        gains: (users, 3) of each such contender: hit, NDCG and reciprocal rank of each warm user, means over seeds.
        reasons: why each other peer did not run.
    """

    figures: dict[str, dict[str, Any]]
    gains: dict[str, Matrix]
    reasons: dict[str, dict[str, Any]]

    @property
    def ratios(self) -> dict[str, float | None]:
        """Returns our NDCG divided by each peer's; None for a peer that did not run or has no hit."""
        ours = self.figures["ours"]["ndcg"]
        ran = {
            name: ours / peer["ndcg"] if peer["ndcg"] else None
            for name, peer in self.figures.items()
            if name != "ours"
        }
        return ran | dict.fromkeys(self.reasons)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, help="folder of MovieLens 100k and Amazon Beauty")
    parser.add_argument(
        "--log", type=Path, action="append", default=[], help="file of choices; can be given several times"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="name of a log: movielens, beauty, or a file without its suffix",
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="configuration of our lists, for one log (default conf/datasets/movielens.yaml; "
        "benchmarks/lists.yaml for a file of choices)",
    )
    parser.add_argument(
        "--core",
        type=int,
        default=5,
        help="least number of rows of each user and item in a file of choices (default %(default)s)",
    )
    parser.add_argument(
        "--lake",
        action="append",
        default=[],
        help="for one log: lake of a finished run of nightly, whose lists are measured; one per seed (default: run nightly)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default %(default)s)")
    parser.add_argument(
        "--seeds-of",
        action="append",
        default=[],
        metavar="LOG=N",
        help="number of seeds on one log, such as beauty=1; can be given several times",
    )
    parser.add_argument(
        "--keep", type=Path, help="folder of finished parts, from which a run that was interrupted continues"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="LOG-PEER",
        help="a peer that does not run on one log, such as beauty-bert4rec_replay; can be given several times",
    )
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch, one setting of each peer")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as --set of nightly")
    options = parser.parse_args(arguments)
    logs = find_logs(options, parser)
    seeds = seeds_of(options, parser, logs)
    settings = (f"score.k={K}", *(QUICK if options.quick else ()), *options.overrides)
    parts = ChosenParts(options.keep, without=tuple(options.without))
    measured = {
        log.name: compare(log, settings, seeds[log.name], options.lake, parts, quick=options.quick)
        for log in logs
    }
    pooled = pool(list(measured.values())) if len(measured) > 1 else {}
    if pooled:
        print(f"\nusers of all logs together\n{_pooled_table(pooled)}")
    ratios = {f"{log} {name}": ratio for log, of in measured.items() for name, ratio in of.ratios.items()}
    ours = {log: of.figures.pop("ours") for log, of in measured.items()}
    peers = {log: of.figures | of.reasons for log, of in measured.items()}
    of_machine = machine(len(os.sched_getaffinity(0)), ("torch", "numpy"))
    more = {"quick": options.quick, "seeds": seeds, "overrides": options.overrides}
    more |= {
        "config": str(options.config) if options.config else None,
        "lakes": len(options.lake),
        "pooled": pooled,
        "kept_parts": parts.read,
        "without": options.without,
    }
    print(summary_line("lists", of_machine, ours, peers, ratios, **more))
    return 0


def seeds_of(
    options: argparse.Namespace, parser: argparse.ArgumentParser, logs: Sequence[Log]
) -> dict[str, int]:
    """Returns the number of seeds on each log: 1 with --quick, else that of --seeds-of, else that of --seeds."""
    seeds = dict.fromkeys((log.name for log in logs), options.seeds)
    for text in options.seeds_of:
        name, _, number = text.partition("=")
        if not number.isdecimal() or int(number) < 1:
            parser.error(f"--seeds-of={text} is not the name of a log, `=`, and a number above 0")
        seeds[name] = int(number)
    return dict.fromkeys(seeds, 1) if options.quick else seeds


def find_logs(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Log]:
    """Returns the logs that the options name."""
    logs, wanted = [], set(options.only)
    files = list(options.log)
    if options.data:
        if not options.data.is_dir():
            parser.error(f"--data={options.data}: there is no such folder")
        if not wanted or "movielens" in wanted:
            logs += _found("MovieLens 100k (ml-100k.inter)", options.data, find_movielens(options.data))
        if not wanted or "beauty" in wanted:
            files += _found("Amazon Beauty (beauty.txt)", options.data, find_beauty(options.data))
    for path in files:
        if not path.is_file():
            parser.error(f"--log={path}: there is no such file")
        if not wanted or path.stem in wanted:
            logs.append(read_choices(path, options.core))
    _check(logs, options, parser)
    return [replace(log, config=options.config.resolve()) for log in logs] if options.config else logs


def _check(logs: Sequence[Log], options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exits with an error if the logs and the options do not fit together."""
    if not logs:
        parser.error(
            "there is no log to measure: give --data or --log, and a name of one of their logs as --only"
        )
    if (options.config or options.lake) and len(logs) > 1:
        names = ", ".join(log.name for log in logs)
        parser.error(f"--config and --lake are for one log, but there are {names}; choose one with --only")
    for log in logs:
        if log.rows.empty:
            parser.error(f"{log.name} has no rows; a smaller --core than {options.core} may keep some")


def _found(what: str, folder: Path, log: Any) -> list[Any]:
    if log is None:
        print(f"lists: {what} is not in {folder}; it is skipped", file=sys.stderr)
        return []
    return [log]


def compare(
    log: Log, settings: Sequence[str], seeds: int, lakes: Sequence[str], parts: Parts, *, quick: bool
) -> Measured:
    """Runs all contenders on one log and prints their table. If there are lakes, it measures their lists."""
    task = make_task(log.rows)
    if lakes:
        ours = lists_of_lakes(lakes, log, task, settings, K)
    else:
        ours = run_ours(log, task, settings, seeds, K, parts)
    contenders = {"ours": ours, **run_peers(task, K, seeds, log.name, parts, quick=quick)}
    ran = {name: peer for name, peer in contenders.items() if peer.lists}
    by_user = {
        name: np.mean([gains(one, task.warm_test) for one in peer.lists], axis=0)
        for name, peer in ran.items()
    }
    figures = {name: _figures(peer, task) for name, peer in ran.items()}
    for name in ran:
        if name != "ours":
            figures[name] |= _intervals(by_user["ours"], by_user[name])
    users, cold = int((task.warm_test >= 0).sum()), int((task.cold_test >= 0).sum())
    print(f"\n{log.name}: {users} warm users, {cold} cold users, {len(task.items)} items")
    print(_table(figures))
    print(f"\nthe test item among drawn items\n{_sampled_table(figures)}", flush=True)
    reasons = {name: peer.facts for name, peer in contenders.items() if not peer.lists}
    return Measured(figures, by_user, reasons)


def _figures(peer: Peer, task: Task) -> dict[str, Any]:
    """Returns the figures of one contender as JSON values, means over seeds."""
    users = int(task.warm.sum())
    figures: dict[str, Any] = mean_figures(peer.lists, task.warm_test, task.chosen, users)
    cold = None
    if (task.cold_test >= 0).any():
        hit_rate, ndcg, _ = np.mean(
            [gains(one, task.cold_test).mean(0) for one in peer.lists], axis=0
        ).tolist()
        cold = {"users": int((task.cold_test >= 0).sum()), "hit_rate": hit_rate, "ndcg": ndcg}
    by_seed = [float(gains(one, task.warm_test)[:, 1].mean()) for one in peer.lists]
    figures |= {"cold_users": cold, "ndcg_by_seed": by_seed, **peer.facts}
    figures["sampled"] = sampled_figures(peer.samples, task.warm_test)
    if peer.train_lists:
        hit_rate, ndcg, _ = np.mean(
            [gains(one, task.warm_test).mean(0) for one in peer.train_lists], axis=0
        ).tolist()
        figures["without_validation_item"] = {"hit_rate": hit_rate, "ndcg": ndcg}
    return figures


def _intervals(ours: Matrix, theirs: Matrix) -> dict[str, list[float]]:
    """Returns the intervals of our hit rate and NDCG minus the peer's."""
    return {
        f"ours_minus_this_{measure}": list(paired_interval(ours[:, column], theirs[:, column]))
        for column, measure in enumerate(("hit_rate", "ndcg"))
    }


def _table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    keys = ("hit_rate", "hit_rate_error", "ndcg", "average_precision", "coverage", "novelty")
    head = [
        "lists",
        "HR@10",
        "standard error",
        "NDCG@10",
        "MAP@10",
        "coverage",
        "novelty",
        "seeds",
        "ours is",
    ]
    rows = []
    for name, of in figures.items():
        numbers = [f"{of[key]:.1f}" if key == "novelty" else f"{of[key]:.4f}" for key in keys]
        ratio = f"{figures['ours']['ndcg'] / of['ndcg']:.2f} ×" if name != "ours" and of["ndcg"] else ""
        short = of.get("without_validation_item")
        without = f"{short['ndcg']:.4f}" if short else ""
        rows.append([name, *numbers, str(len(of["ndcg_by_seed"])), ratio, _interval_text(of), without])
    return table([*head, "ours − this, 95%", "without validation item"], rows)


def _sampled_table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    head = [f"{measure} of {protocol}" for protocol in SAMPLES for measure in ("HR@10", "NDCG@10")]
    rows = [
        [
            name,
            *(f"{of['sampled'][protocol][key]:.4f}" for protocol in SAMPLES for key in ("hit_rate", "ndcg")),
        ]
        for name, of in figures.items()
    ]
    return table(["lists", *head], rows)


def pool(measured: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    """Returns the NDCG of each contender over the warm users of all logs, and ours minus each peer's."""
    common = [name for name in measured[0].gains if all(name in of.gains for of in measured)]
    joined = {name: np.concatenate([of.gains[name] for of in measured]) for name in common}
    return {
        name: {"ndcg": float(of[:, 1].mean())} | ({} if name == "ours" else _intervals(joined["ours"], of))
        for name, of in joined.items()
    }


def _pooled_table(pooled: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[name, f"{of['ndcg']:.4f}", _interval_text(of)] for name, of in pooled.items()]
    return table(["lists", "NDCG@10", "ours − this, 95%"], rows)


def _interval_text(of: Mapping[str, Any]) -> str:
    interval = of.get("ours_minus_this_ndcg")
    return f"{interval[0]:+.4f} to {interval[1]:+.4f}" if interval else ""


if __name__ == "__main__":
    sys.exit(main())
