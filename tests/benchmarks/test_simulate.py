"""The model of large runs: its arithmetic, its agreement with measurements, and its last line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import simulate
from benchmarks.simulate import BUILD, CLUSTERS, MEASURED, RATES, Cluster, Day, Line, Stage, stages, total

BUILD_CPU = simulate.calibrated(MEASURED[BUILD])[1]
ONE, CPU, _, GPU = CLUSTERS.values()


def of(day: Day, cluster: Cluster = CPU) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages(day, cluster, BUILD_CPU)}


def test_a_line_goes_through_its_two_measurements() -> None:
    line = Line.through((1.0, 5.0), (3.0, 9.0))
    assert (line.fixed, line.of_row, line.at(10)) == (3.0, 2.0, 23.0)


def test_sizes_that_did_not_calibrate_are_predicted_within_15_percent() -> None:
    compared, ratios = simulate.comparison({BUILD: MEASURED[BUILD]})
    assert len(compared) == 2
    assert [abs(ratio - 1) <= simulate.WITHIN for ratio in ratios.values() if ratio] == [True] * 4
    worse = {**MEASURED[BUILD], 64_000_000: (200.0, 153.0)}
    assert simulate.comparison({BUILD: worse})[1]["build_features, 64,000,000 rows: seconds"] < 0.5


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=list(CLUSTERS))
def test_bytes_that_a_stage_reads_are_those_that_another_wrote(cluster: Cluster) -> None:
    of_run = of(Day.of_bytes(1e12), cluster)
    work = {name: stage.work for name, stage in of_run.items()}
    assert work["scan"].read_bytes == work["encode"].read_bytes == pytest.approx(1e12)
    assert work["report and fit"].read_bytes == work["scan"].written_bytes
    assert work["train"].read_bytes == work["evaluate and measure"].read_bytes == work["encode"].written_bytes
    assert work["score"].read_bytes == work["candidates"].written_bytes
    figures = total(list(of_run.values()), cluster)
    assert figures["read_gb"] == round(sum(one.read_bytes for one in work.values()) / 1e9, 1)
    assert figures["seconds"] == pytest.approx(sum(one.seconds for one in of_run.values()), abs=0.1)
    assert figures["cost"] == pytest.approx(
        figures["seconds"] / 3600 * cluster.nodes * cluster.price, abs=0.02
    )


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=list(CLUSTERS))
def test_a_larger_day_needs_more_and_a_larger_cluster_is_not_slower(cluster: Cluster) -> None:
    small, large = of(Day.of_bytes(1e12), cluster), of(Day.of_bytes(1e13), cluster)
    for name, stage in small.items():
        assert stage.seconds < large[name].seconds
        assert stage.work.read_bytes * 10 == pytest.approx(large[name].work.read_bytes)
        assert stage.work.shuffle_bytes * 10 == pytest.approx(large[name].work.shuffle_bytes)
    wider = of(Day.of_bytes(1e12), replace(cluster, nodes=2 * cluster.nodes))
    assert all(wider[name].seconds <= stage.seconds for name, stage in small.items())
    assert sum(stage.seconds for stage in wider.values()) < sum(stage.seconds for stage in small.values())


def test_the_bottleneck_is_the_slowest_resource() -> None:
    day = Day.of_bytes(1e12)
    for stage in stages(day, GPU, BUILD_CPU):
        assert stage.busy[stage.bottleneck] == max(stage.busy.values())
        assert stage.seconds >= stage.busy[stage.bottleneck]
    assert of(day)["scan"].bottleneck == "store"
    assert of(day, replace(CPU, store_bytes_s=1e12))["scan"].bottleneck == "CPU"
    assert of(day, replace(CPU, store_bytes_s=1e6))["scan"].bottleneck == "store"
    assert of(day, replace(CPU, network_bytes_s=1e6))["train"].bottleneck == "network"
    assert of(day, GPU)["train"].bottleneck == "GPU"
    assert of(day, ONE)["train"].work.shuffle_bytes == 0
    in_spark = of(day, replace(ONE, spark=True))
    assert all(stage.seconds <= in_spark[name].seconds for name, stage in of(day, ONE).items())


def test_every_rate_names_its_source() -> None:
    for name, rate in RATES.items():
        assert rate.value > 0
        assert len(rate.source) > 20, name
    assert any(rate.assumed for rate in RATES.values())


def test_the_script_ends_in_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--quick", "--price", "8 × 32 cores=3.2"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["benchmark"] == "simulate"
    assert {"machine", "ours", "peers", "ratios"} <= set(summary)
    (day,) = summary["ours"]["days"].values()
    assert set(day) == set(CLUSTERS)
    one = day["8 × 32 cores"]
    assert one["cost"] == pytest.approx(one["seconds"] / 3600 * 8 * 3.2, abs=0.02)
    assert summary["rates"]["samples_s_of_gpu"]["source"].startswith("gpu/training_step.py")
    assert summary["measured_now"] is False


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--price", "my cluster=1"], "there is no cluster 'my cluster'"),
        (["--measure", "1000"], "needs at least two sizes"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        simulate.main(arguments)
    assert words in capsys.readouterr().err
