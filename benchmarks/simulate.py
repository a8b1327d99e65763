"""Predicts seconds, bytes, memory and cost of a daily run for large logs, on clusters that you describe.

    .venv/bin/python benchmarks/simulate.py [--quick] [--terabytes N …] [--measure ROWS …] [--price CLUSTER=PRICE …]

A run has stages. Each stage needs CPU seconds, bytes from the store, bytes to the store, bytes between machines,
and perhaps seconds of a GPU. Its work is linear in the rows of the day, the pairs of users and candidates, or
the users. Each rate in `RATES` is a figure of RESULTS.md, or an assumption, and names its source. The resource
that needs the most time is the stage's bottleneck, and determines its seconds. Seconds that do not depend on
the amount of work are added.

The line of build_features was calibrated with two measured sizes, 1 and 4 million rows, and predicts larger
sizes. `ratios` contains predicted figures divided by the figures that were measured at 16 and 64 million rows on
the same machine (section etl.py of RESULTS.md). A line for whole runs of nightly was calibrated in the same way
with the scales 1 and 10 of run.py, and compared with the scale 100. A prediction should be within 15%.
With `--measure 1000000 4000000 16000000 64000000`, the script measures build_features on this machine
instead: it calibrates with the first two sizes and compares the others.

Without `--measure`, nothing is measured. No cluster was measured at these sizes: a figure for a cluster is as
good as the assumptions about the work of Spark, stores and networks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import GIB, machine, summary_line, table

WITHIN = 0.15
TERABYTE = 1e12
BUILD = "build_features"
# Maps rows to (seconds, CPU seconds), as measured in November 2026. The first two sizes of each are used to calibrate.
# Sources: sections etl.py (EPYC) and run.py (Xeon) of RESULTS.md.
Sizes = Mapping[int, tuple[float, float]]
MEASURED: Mapping[str, Sizes] = {
    BUILD: {
        1_000_000: (2.11, 3.6),
        4_000_000: (5.74, 10.3),
        16_000_000: (20.3, 37.5),
        64_000_000: (86.5, 153.0),
    },
    "nightly, fresh": {479_072: (8.4, 12.9), 4_790_666: (44.3, 68.3), 47_903_740: (471, 696)},
    "nightly, warm": {479_072: (7.2, 10.8), 4_790_666: (36.2, 58.4), 47_903_740: (460, 656)},
}


@dataclass(frozen=True)
class Rate:
    """A number of the model.

    Attributes:
        value: the number.
        unit: its unit.
        source: the measurement, or the reason for an assumption.
        assumed: whether the number was not measured.
    """

    value: float
    unit: str
    source: str
    assumed: bool = False


RATES: Mapping[str, Rate] = {
    "text_bytes_of_row": Rate(14.5 * GIB / 64e6, "bytes", "etl.py: 64 million rows are 14.5 GiB of text"),
    "task_s": Rate(0.0577, "CPU s", "docs/decisions/jobs.md#0031: a Python task in Spark, EPYC, 22"),
    "spark_start_s": Rate(7.7, "s", "etl.py: start-up of our job in Spark, EPYC"),
    "spark_over_processes": Rate(
        16.5 / 10.3,
        "times",
        "etl.py: CPU seconds of build_features at 4 million rows, in Spark and in processes",
    ),
    "scan_share": Rate(
        2.5 / 5.2, "of build_features", "etl.py: parts at 4 million rows, without start and end"
    ),
    "report_and_fit_share": Rate(1.3 / 5.2, "of build_features", "etl.py: parts at 4 million rows"),
    "encode_share": Rate(1.4 / 5.2, "of build_features", "etl.py: parts at 4 million rows"),
    "feature_bytes_of_row": Rate(
        100.0, "bytes", "40 columns of 4 bytes and a key; zstd makes them smaller by a third", assumed=True
    ),
    "count_bytes_of_row": Rate(
        26.0, "bytes", "value counts of 26 columns: one new value of 26 bytes per row", assumed=True
    ),
    "value_bytes": Rate(90.0, "bytes", "etl_scaling.py: 80 to 100 bytes of memory per merged value"),
    "merged_values": Rate(8e6, "values", "etl_scaling.py: a task merges at most about 8 million values"),
    "worker_gib": Rate(0.75, "GiB", "etl.py: 1.5 GiB on two cores at 64 million rows"),
    "samples_s_of_core": Rate(
        44_912 / 2, "samples/s", "training.py: DLRM, dimension 128, bf16, two cores of an EPYC"
    ),
    "rank_efficiency": Rate(
        0.804, "share", "training.py: two ranks, compared with two separate trainings, Xeon"
    ),
    "dense_bytes_of_step": Rate(
        4_627.0 * 2_048, "bytes", "training.py: dense gradients that a rank sends in a step, batch 2,048"
    ),
    "rows_of_step_on_cpu": Rate(16_384.0, "rows", "local batch of a rank without a GPU", assumed=True),
    "rows_of_step_on_gpu": Rate(65_536.0, "rows", "gpu/training_step.py: batch of the measured step"),
    "row_bytes_of_sample": Rate(1_412.0, "bytes", "training.py: rows of tables that a rank sends"),
    "samples_s_of_gpu": Rate(17.4e6, "samples/s", "gpu/training_step.py: the step alone, bf16, H200"),
    "loader_rows_s_of_gpu": Rate(
        560_585.0, "rows/s", "gpu/loader_feeding.py: loader and step together, H200, before its correction"
    ),
    "evaluation_cpu_s_of_row": Rate(
        (5 + 4.5) / 4_790_666, "CPU s", "run.py: evaluate_model and measure_recommendations, scale 10, EPYC"
    ),
    "pairs_s_of_core": Rate(358_497 / 2, "pairs/s", "scoring.py: lists in bf16, two cores of an EPYC"),
    "pairs_s_of_gpu": Rate(
        46.8e6, "pairs/s", "gpu/scoring.py: rows of the model alone, bf16, H200; lists were not measured"
    ),
    "list_bytes": Rate(
        600.0, "bytes", "a list of 10 items with keys, scores and reasons, compressed", assumed=True
    ),
    "retrieval_cpu_s_of_user": Rate(
        0.37e-3, "CPU s", "retrieval.py: approximate search among 1 million items, one core of an EPYC"
    ),
    "core_efficiency": Rate(
        0.9,
        "share",
        "training.py: two processes on two cores reach 0.88 to 0.91; for more cores",
        assumed=True,
    ),
    "footer_s": Rate(
        64e-6, "CPU s", "driver: unpacking the footer of a file of 40 columns, EPYC with much other work, 29"
    ),
}


@dataclass(frozen=True)
class Cluster:
    """The machines of a run.

    Attributes:
        nodes, cores, memory_gib: number of machines, and cores and memory of one machine.
        disk_bytes_s, network_bytes_s, store_bytes_s: bytes per second of one machine: local disks, network
            to other machines, and reading from or writing to the store of lake and logs.
        price: US dollars per machine and hour. An assumption: replace it by your provider's price.
        gpus: GPUs of one machine.
        spark: whether Spark runs the tasks; otherwise processes of the one machine run them.
    """

    nodes: int
    cores: int
    memory_gib: float
    disk_bytes_s: float
    network_bytes_s: float
    store_bytes_s: float
    price: float
    gpus: int = 0
    spark: bool = True

    @property
    def all_cores(self) -> int:
        return self.nodes * self.cores

    @property
    def all_gpus(self) -> int:
        return self.nodes * self.gpus


# Machines such as providers rent them. Bytes per second and prices are assumptions.
CLUSTERS: Mapping[str, Cluster] = {
    "1 × 16 cores": Cluster(1, 16, 64, 1.0e9, 1.2e9, 1.0e9, 0.8, spark=False),
    "8 × 32 cores": Cluster(8, 32, 128, 1.0e9, 1.5e9, 1.2e9, 1.6),
    "64 × 32 cores": Cluster(64, 32, 128, 1.0e9, 1.5e9, 1.2e9, 1.6),
    "8 × (16 cores, H200)": Cluster(8, 16, 128, 2.0e9, 3.0e9, 1.5e9, 4.5, gpus=1),
}


@dataclass(frozen=True)
class Day:
    """The amount of work of a daily run with a retraining on the new day.

    Attributes:
        rows: rows of the new day.
        users: users who get a list.
        candidates: candidates of a user.
        files: raw files of the day.
    """

    rows: float
    users: float
    candidates: int = 500
    files: int = 1

    @classmethod
    def of_bytes(cls, text_bytes: float) -> Day:
        """Returns a day of this number of bytes of plain text, in files of 1 GB, with 100 rows per user."""
        rows = text_bytes / RATES["text_bytes_of_row"].value
        return cls(rows, rows / 100, files=max(1, round(text_bytes / 1e9)))


@dataclass(frozen=True)
class Work:
    """What a stage needs, over all machines.

    Attributes:
        cpu_s: CPU seconds that all cores share.
        read_bytes, written_bytes: bytes from and to the store.
        shuffle_bytes: bytes that go from machine to machine.
        spill_bytes: bytes on local disks.
        gpu_s: seconds of one GPU, which all GPUs share.
        driver_s: seconds of one core of the driver, which do not overlap with other work.
        start_s: seconds that do not depend on the amount of work.
        memory_gib: memory of one machine.
    """

    cpu_s: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    shuffle_bytes: float = 0.0
    spill_bytes: float = 0.0
    gpu_s: float = 0.0
    driver_s: float = 0.0
    start_s: float = 0.0
    memory_gib: float = 0.0


@dataclass(frozen=True)
class Stage:
    """The prediction for one stage.

    Attributes:
        name: the stage.
        work: what it needs.
        seconds: seconds of the stage.
        bottleneck: the resource that needs the most time.
        busy: maps each resource to its seconds.
    """

    name: str
    work: Work
    seconds: float
    bottleneck: str
    busy: Mapping[str, float] = field(default_factory=dict)


def value(name: str) -> float:
    """Returns a rate."""
    return RATES[name].value


@dataclass(frozen=True)
class Line:
    """A linear function of the number of rows: a fixed part, and a part for each row."""

    fixed: float
    of_row: float

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> Line:
        """Returns the line through two measurements (rows, seconds)."""
        of_row = (large[1] - small[1]) / (large[0] - small[0])
        return cls(small[1] - of_row * small[0], of_row)

    def at(self, rows: float) -> float:
        """Returns the value for a number of rows."""
        return self.fixed + self.of_row * rows


def calibrated(measured: Sizes) -> tuple[Line, Line]:
    """Returns the lines of seconds and of CPU seconds through the first two measured sizes."""
    small, large = list(measured)[:2]
    seconds, cpu = (
        Line.through((small, measured[small][part]), (large, measured[large][part])) for part in (0, 1)
    )
    return seconds, cpu


def timed(name: str, work: Work, cluster: Cluster) -> Stage:
    """Returns the seconds of a stage on a cluster: those of its slowest resource, and its fixed parts."""
    busy = {
        "CPU": work.cpu_s / (cluster.all_cores * value("core_efficiency")),
        "store": (work.read_bytes + work.written_bytes) / (cluster.nodes * cluster.store_bytes_s),
        "network": work.shuffle_bytes / (cluster.nodes * cluster.network_bytes_s),
        "disk": 2 * work.spill_bytes / (cluster.nodes * cluster.disk_bytes_s),
        "GPU": work.gpu_s / cluster.all_gpus if cluster.all_gpus else 0.0,
        "driver": work.driver_s,
    }
    together = {name: seconds for name, seconds in busy.items() if name != "driver"}
    slowest = max(busy, key=lambda resource: busy[resource])
    return Stage(name, work, work.start_s + work.driver_s + max(together.values()), slowest, busy)


def stages(day: Day, cluster: Cluster, build_cpu: Line, split_bytes: float = 64 * 2**20) -> list[Stage]:
    """Returns the predictions for the stages of a run.

    Args:
        day: the amount of work.
        cluster: the machines.
        build_cpu: CPU seconds of build_features in processes of one machine, by rows.
        split_bytes: text that a task reads.
    """
    text = day.rows * value("text_bytes_of_row")
    features = day.rows * value("feature_bytes_of_row")
    counts = day.rows * value("count_bytes_of_row")
    lists = day.users * value("list_bytes")
    tasks = max(1.0, text / split_bytes)
    cpu = build_cpu.of_row * day.rows * (value("spark_over_processes") if cluster.spark else 1.0)
    task_s, start_s = (value("task_s"), value("spark_start_s")) if cluster.spark else (0.0, 0.0)
    workers_gib = cluster.cores * value("worker_gib")
    merge_gib = value("merged_values") * value("value_bytes") / GIB
    pairs = day.users * day.candidates
    gpus = cluster.all_gpus
    step_rows = value("rows_of_step_on_gpu") if gpus else value("rows_of_step_on_cpu")
    moved = value("dense_bytes_of_step") / step_rows + value("row_bytes_of_sample")
    work = {
        "scan": Work(
            cpu_s=value("scan_share") * cpu + tasks * task_s,
            read_bytes=text,
            written_bytes=counts,
            driver_s=tasks * value("footer_s"),
            start_s=start_s,
            memory_gib=workers_gib,
        ),
        "report and fit": Work(
            cpu_s=value("report_and_fit_share") * cpu,
            read_bytes=counts,
            written_bytes=counts / 10,
            shuffle_bytes=counts if cluster.nodes > 1 else 0.0,
            spill_bytes=counts,
            memory_gib=workers_gib + cluster.cores * merge_gib,
        ),
        "encode": Work(
            cpu_s=value("encode_share") * cpu + tasks * task_s,
            read_bytes=text,
            written_bytes=features,
            driver_s=tasks * value("footer_s"),
            memory_gib=workers_gib,
        ),
        "train": Work(
            cpu_s=0.0 if gpus else day.rows / (value("samples_s_of_core") * value("rank_efficiency")),
            gpu_s=day.rows / min(value("samples_s_of_gpu"), value("loader_rows_s_of_gpu")) if gpus else 0.0,
            read_bytes=features,
            shuffle_bytes=day.rows * moved if cluster.nodes > 1 else 0.0,
            spill_bytes=features,
            start_s=start_s,
            memory_gib=workers_gib,
        ),
        "evaluate and measure": Work(
            cpu_s=day.rows * value("evaluation_cpu_s_of_row"),
            read_bytes=features,
            start_s=start_s,
            memory_gib=workers_gib,
        ),
        "candidates": Work(
            cpu_s=day.users * value("retrieval_cpu_s_of_user"),
            written_bytes=day.users * day.candidates * 4.0,
            start_s=start_s,
            memory_gib=workers_gib,
        ),
        "score": Work(
            cpu_s=0.0 if gpus else pairs / value("pairs_s_of_core"),
            gpu_s=pairs / value("pairs_s_of_gpu") if gpus else 0.0,
            read_bytes=day.users * day.candidates * 4.0,
            written_bytes=lists,
            start_s=start_s,
            memory_gib=workers_gib,
        ),
    }
    return [timed(name, needed, cluster) for name, needed in work.items()]


def total(of_run: Sequence[Stage], cluster: Cluster) -> dict[str, Any]:
    """Returns the sums of a run: seconds, bytes, memory of the largest stage, cost and bottleneck."""
    seconds = sum(stage.seconds for stage in of_run)
    slowest = max(of_run, key=lambda stage: stage.seconds)
    return {
        "seconds": round(seconds, 1),
        "cpu_hours": round(sum(stage.work.cpu_s for stage in of_run) / 3600, 2),
        "read_gb": round(sum(stage.work.read_bytes for stage in of_run) / 1e9, 1),
        "written_gb": round(sum(stage.work.written_bytes for stage in of_run) / 1e9, 1),
        "shuffle_gb": round(sum(stage.work.shuffle_bytes for stage in of_run) / 1e9, 1),
        "disk_gb": round(sum(stage.work.spill_bytes for stage in of_run) / 1e9, 1),
        "memory_gib_of_node": round(max(stage.work.memory_gib for stage in of_run), 1),
        "fits_memory": max(stage.work.memory_gib for stage in of_run) <= cluster.memory_gib,
        "cost": round(seconds / 3600 * cluster.nodes * cluster.price, 2),
        "slowest_stage": slowest.name,
        "bottleneck": slowest.bottleneck,
    }


def measured_here(sizes: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Runs build_features at each size on this machine, and returns seconds and CPU seconds by rows."""
    from benchmarks.criteo_log import make_log
    from benchmarks.etl_runs import CACHE, DAYS, job, log_by_day, run_contender

    measured = {}
    for rows in sizes:
        log = log_by_day(make_log(CACHE, rows, DAYS))
        run = run_contender(job(log, []), log, 2, 7200.0, compared=False)
        measured[rows] = run.seconds, run.cpu_s
        print(f"simulate: {rows:,} rows: {run.seconds:.2f} s", file=sys.stderr, flush=True)
    return measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the predictions, and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="only the days of 1 TB")
    parser.add_argument(
        "--terabytes", type=float, nargs="+", default=(1.0, 10.0, 100.0), help="sizes of a day"
    )
    parser.add_argument(
        "--measure", type=int, nargs="+", help="measure build_features at these numbers of rows, at least two"
    )
    parser.add_argument(
        "--price", action="append", default=[], help="a price, such as '8 × 32 cores=1.25' dollars per hour"
    )
    options = parser.parse_args(arguments)
    if options.measure and len(options.measure) < 2:
        parser.error("--measure needs at least two sizes: the model is calibrated with the first two")
    clusters = dict(CLUSTERS)
    for text in options.price:
        name, _, price = text.rpartition("=")
        if name not in clusters:
            parser.error(f"--price {text!r}: there is no cluster {name!r}; choose from {list(clusters)}")
        clusters[name] = replace(clusters[name], price=float(price))
    measured = {BUILD: measured_here(options.measure)} if options.measure else MEASURED
    compared, ratios = comparison(measured)
    build_cpu = calibrated(measured[BUILD])[1]
    of_days = {
        f"{terabytes:g} TB": {
            name: _figures(Day.of_bytes(terabytes * TERABYTE), cluster, build_cpu)
            for name, cluster in clusters.items()
        }
        for terabytes in (options.terabytes[:1] if options.quick else options.terabytes)
    }
    _print(compared, of_days)
    rates = {name: vars(rate) for name, rate in RATES.items()}
    ours = {"compared": compared, "days": of_days}
    more = {"rates": rates, "within": WITHIN, "measured_now": bool(options.measure)}
    print(summary_line("simulate", machine(2), ours, {}, ratios, **more))
    return 0


def comparison(
    measured: Mapping[str, Sizes],
) -> tuple[dict[str, dict[str, float]], dict[str, float | None]]:
    """Returns predicted and measured figures at sizes that did not calibrate, and their ratios."""
    compared: dict[str, dict[str, float]] = {}
    ratios: dict[str, float | None] = {}
    for name, by_rows in measured.items():
        lines = calibrated(by_rows)
        for rows in list(by_rows)[2:]:
            size = f"{name}, {rows:,} rows"
            figures: dict[str, float] = {}
            for figure, line, actual in zip(("seconds", "cpu_s"), lines, by_rows[rows], strict=True):
                predicted = line.at(rows)
                figures |= {
                    f"predicted_{figure}": round(predicted, 2),
                    f"measured_{figure}": round(actual, 2),
                }
                ratios[f"{size}: {figure}"] = predicted / actual
            compared[size] = figures
    return compared, ratios


def _figures(day: Day, cluster: Cluster, build_cpu: Line) -> dict[str, Any]:
    of_run = stages(day, cluster, build_cpu)
    by_stage = {stage.name: {"seconds": round(stage.seconds, 1), "by": stage.bottleneck} for stage in of_run}
    return {**total(of_run, cluster), "stages": by_stage}


def _print(compared: Mapping[str, Mapping[str, float]], days: Mapping[str, Mapping[str, Any]]) -> None:
    head = ["", "predicted s", "measured s", "", "predicted CPU s", "measured CPU s", ""]
    rows = []
    for size, one in compared.items():
        cells = [size]
        for name in ("seconds", "cpu_s"):
            predicted, actual = one[f"predicted_{name}"], one[f"measured_{name}"]
            verdict = "met" if abs(predicted / actual - 1) <= WITHIN else "MISSED"
            cells += [f"{predicted:.1f}", f"{actual:.1f}", f"{predicted / actual - 1:+.1%} {verdict}"]
        rows.append(cells)
    print(table(head, rows))
    print()
    head = [
        "a day of",
        "cluster",
        "minutes",
        "shuffle GB",
        "disk GB",
        "memory GiB",
        "cost $",
        "slowest stage",
    ]
    print(
        table(
            head,
            [
                [
                    size,
                    name,
                    f"{one['seconds'] / 60:.1f}",
                    f"{one['shuffle_gb']:,.0f}",
                    f"{one['disk_gb']:,.0f}",
                    f"{one['memory_gib_of_node']:.0f}",
                    f"{one['cost']:,.2f}",
                    f"{one['slowest_stage']} ({one['bottleneck']})",
                ]
                for size, by_cluster in days.items()
                for name, one in by_cluster.items()
            ],
        )
    )
    print()


if __name__ == "__main__":
    sys.exit(main())
