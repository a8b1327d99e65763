"""Every job from the archive of `make dist` on a YARN of two node managers, with its raw log on HDFS.

An executor of every job is killed, and the results equal those of the checkout on one machine.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark.profile import read_properties
from storage.paths import LakePaths
from tests.cluster.chain import CHAIN, CONFIG, RUN_DATE, STARTED, lists, overrides
from tests.cluster.equal import require_equal_features, require_equal_lists, require_equal_models
from tests.cluster.node import Ended, Node
from tests.etl.lakes.servers import QUICK_JAVA
from tests.etl.lakes.stores import HdfsStore
from tests.processes import wait_for
from tests.yarn import Yarn, yarn_cluster

pytestmark = [pytest.mark.large, pytest.mark.timeout(900)]

ARCHIVE = "nightrank/environment.tar.gz"  # the place of conf/spark/on-yarn.conf
RAW = "logs"
# These jobs are submitted with train-cpu.conf.
TRAIN = {"train_model", "evaluate_model"}


@dataclass
class Submitted:
    """How the jobs of a lake ended.

    Attributes:
        ended: how each job ended; the last attempt if it ran twice.
        broke: how the first attempt of a job ended that ran twice.
        applications: the application of each attempt, in this order.
        killed: the containers whose executor was killed.
    """

    lake: Path
    ended: dict[str, Ended] = field(default_factory=dict)
    broke: dict[str, Ended] = field(default_factory=dict)
    applications: list[tuple[str, str]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def yarn(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as yarn:
        archive = linked_environment(node, yarn.folder / "environment.tar.gz")
        HdfsStore(yarn.hdfs).write(ARCHIVE, archive.read_bytes())
        yield yarn


def linked_environment(node: Node, path: Path) -> Path:
    """Writes an archive of the node's environment whose folder `lib` is a link to that of the node.

    Each node manager would unpack the real archive, 5 GB, for a minute.
    """
    environment = node.folder / "environment"
    with tarfile.open(path, "w:gz") as packed:
        for name in ("bin", "pyvenv.cfg"):
            packed.add(environment / name, name)
        link = tarfile.TarInfo("lib")
        link.type, link.linkname = tarfile.SYMTYPE, str(environment / "lib")
        packed.addfile(link)
    return path


def write_profile(path: Path, node: Node, jobs: str) -> Path:
    """Writes the profile of docs/clusters.md with the sizes of this small cluster, and the node's paths."""
    settings = read_properties(node.folder / f"conf/spark/{jobs}.conf")
    settings |= read_properties(node.folder / "conf/spark/on-yarn.conf")
    environment = settings["spark.yarn.config.gatewayPath"]
    settings = {
        key: value.replace(environment, str(node.folder / "environment")) for key, value in settings.items()
    }
    settings |= {
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1g",
        # No job is over before the second executor is up.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        **{
            f"spark.{process}.extraJavaOptions": " ".join(QUICK_JAVA)
            for process in ("executor", "driver", "yarn.am")
        },
        "spark.sql.shuffle.partitions": "4",
        "spark.buffer.pageSize": "2m",
        "spark.local.dir": str(path.parent / "scratch"),
    }
    if jobs == "train-cpu":
        settings["spark.task.cpus"] = "1"
    path.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return path


def submit(
    job: str, run_date: str, node: Node, yarn: Yarn, lakes: Submitted, *, kills: bool, options: str = ""
) -> Ended:
    """Submits a job to YARN. With `kills`, its first executor is killed when it has started a task."""
    folder = lakes.lake.parent
    profile = write_profile(folder / f"{job}.conf", node, "train-cpu" if job in TRAIN else "cpu")
    words = f"spark-submit --properties-file {profile} {options} jobs/{job}.py --config {CONFIG} --run-date {run_date}"
    settings = [*overrides(lakes.lake)]
    if job != "generate_clicks":
        settings.append(f"log.path=hdfs:///{RAW}/dt={{date}}/*.tsv*")
    words += "".join(f" --set '{setting}'" for setting in settings)
    known = yarn.applications()

    def kill() -> None:
        application = wait_for("an application", lambda: yarn.applications()[len(known) :], 120)[0]
        log, _ = wait_for("a task", lambda: yarn.log_lines(STARTED, application), 120)[0]
        process = yarn.executors(application)[log.parent.name]
        process.kill()
        lakes.killed.append(log.parent.name)

    ended = node.run(f"export HADOOP_CONF_DIR={yarn.configuration}\n{words}", kill if kills else None)
    lakes.applications += [(job, application) for application in yarn.applications()[len(known) :]]
    return ended


@pytest.fixture(scope="module")
def disturbed(alone: Path, node: Node, yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    """A lake whose jobs each lost an executor. A job that ended with exit code 4 is submitted again."""
    lakes = Submitted(tmp_path_factory.mktemp("yarn-lakes") / "disturbed")
    for job, run_date in CHAIN:
        ended = submit(job, run_date, node, yarn, lakes, kills=job != "report")
        if (
            job in TRAIN and ended.exit_code == 4
        ):  # train-cpu.conf does not repeat the tasks of a lost executor
            lakes.broke[job] = ended
            ended = submit(job, run_date, node, yarn, lakes, kills=False)
        assert ended.exit_code == 0, ended.log[-4000:]
        lakes.ended[job] = ended
        if job == "generate_clicks":
            HdfsStore(yarn.hdfs).upload(lakes.lake / "raw", RAW)
    return lakes


def test_every_job_lost_an_executor(disturbed: Submitted, yarn: Yarn) -> None:
    jobs = [job for job, _ in CHAIN if job != "report"]
    assert len(disturbed.killed) == len(jobs)
    for job in jobs:
        ended = disturbed.broke.get(job, disturbed.ended[job])
        assert "Lost executor" in ended.log, f"{job} was over before its executor was killed"
    assert disturbed.broke["train_model"].exit_code == 4, disturbed.broke["train_model"].log[-4000:]


def test_results_are_those_of_one_machine(disturbed: Submitted, alone: Path) -> None:
    require_equal_features(alone, disturbed.lake)
    require_equal_models(alone, disturbed.lake)
    require_equal_lists(lists(alone), lists(disturbed.lake))
    assert Path(LakePaths(str(disturbed.lake)).report(RUN_DATE)).stat().st_size > 10_000


def test_containers_run_the_environment_that_yarn_unpacked(disturbed: Submitted, yarn: Yarn) -> None:
    """The ranks of the training say where their interpreter is."""
    application = [name for job, name in disturbed.applications if job == "train_model"][-1]
    lines = yarn.log_lines(" of 2 on ", application)
    assert len(lines) == 2
    for _, line in lines:
        assert "/environment, " in line
        assert application in line
