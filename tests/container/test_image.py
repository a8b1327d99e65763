"""Builds both images and runs a small chain in one. `make image-test` runs these tests; `make test` leaves them out."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from setup.install import ROOT
from setup.jars import accelerator, postgresql_driver, s3_client
from setup.sbom import FILE_NAME
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.container.image_store import USER, ImageStore, check_machine

pytestmark = [pytest.mark.image, pytest.mark.processes, pytest.mark.timeout(5400)]

SMALL = ("generate.users=300", "generate.items=100", "generate.rows_per_day=1500")
RUN_DATE = "2026-01-08"  # the demo's first
# 6.60 and 7.47 GiB on 2026-11-26, nearly all of it locked packages. More means that compilers or caches were copied.
MOST_GIB = {"cpu": 7.0, "cuda": 8.0}


@pytest.fixture(scope="module")
def store() -> Iterator[ImageStore]:
    """The store below $IMAGE_STORE, which is kept; without this variable, a temporary one."""
    check_machine()
    if kept := os.environ.get("IMAGE_STORE"):
        yield ImageStore(Path(kept))
        return
    folder = Path(tempfile.mkdtemp(prefix="nightrank-images-", dir="/var/tmp"))
    store = ImageStore(folder)
    try:
        yield store
    finally:
        store.remove()


@pytest.fixture(scope="module")
def cpu(store: ImageStore) -> str:
    store.make_base()
    return store.build("cpu")


@pytest.fixture(scope="module")
def cuda(store: ImageStore, cpu: str) -> str:
    return store.build("cuda")


def output(store: ImageStore, image: str, *command: str) -> str:
    done = store.run(image, *command)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_small_chain_publishes_lists(store: ImageStore, cpu: str, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    folder = tmp_path / "lake"
    folder.mkdir()
    os.chown(folder, USER, USER)  # as a volume with fsGroup
    settings = [word for setting in SMALL for word in ("--set", setting)]
    demo = ("python", "jobs/demo.py", "--nights", "1", "--out", "/lake/demo", *settings)
    done = store.run_read_only(cpu, *demo, lake=folder)  # as in the pods of conf/spark/kubernetes
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    partition = LakePaths(f"{folder}/demo/lake").recommendations.partition(RUN_DATE)
    files = data_files(partition, read_manifest(partition))
    rows = pyarrow.parquet.read_table(files[0]).to_pylist()
    assert len(files) == 1
    lists = Counter(row["user_id"] for row in rows)
    assert len(lists) > 250
    assert set(lists.values()) == {10}
    assert all(Path(file).stat().st_uid == USER for file in files)


def test_a_stage_of_the_chain_runs_by_spark_submit(store: ImageStore, cpu: str, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    folder = tmp_path / "lake"
    folder.mkdir()
    os.chown(folder, USER, USER)
    job = ("jobs/generate_clicks.py", "--config", "conf/datasets/generated.yaml", "--run-date", "2026-01-01")
    settings = [word for setting in (*SMALL, "lake=/lake", "generate.days=2") for word in ("--set", setting)]
    done = store.run(cpu, "spark-submit", "--master", "local[2]", *job, *settings, lake=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["rows_out"] == 3000


def test_the_packages_are_the_locked_ones(store: ImageStore, cpu: str) -> None:
    program = "import importlib.metadata as m\nfor d in m.distributions(): print(f'{d.metadata[\"Name\"]}=={d.version}')"
    shown = {_normal(line) for line in output(store, cpu, "python", "-c", program).splitlines()}
    locked = {
        _normal(line.split(" ")[0])
        for name in ("runtime.txt", "horovod.txt")
        for line in (ROOT / "requirements" / name).read_text().splitlines()
        if "==" in line and not line.lstrip().startswith("#")
    }
    version = re.search(r'^version = "([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert shown == locked | {f"nightrank=={version[1]}"}


def _normal(requirement: str) -> str:
    name, version = requirement.split("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version.partition('+')[0]}"


def test_the_user_may_write_only_where_jobs_do(store: ImageStore, cpu: str) -> None:
    program = "id -u; touch /tmp/x && echo tmp; touch /opt/nightrank/x /opt/nightrank/environment/x; true"
    assert output(store, cpu, "bash", "-c", program).split() == [str(USER), "tmp"]


def test_with_a_read_only_root_only_tmp_and_volumes_are_writable(
    store: ImageStore, cpu: str, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    (tmp_path / "lake").mkdir()
    os.chown(tmp_path / "lake", USER, USER)
    program = (
        "id -u; for f in /tmp /lake /var/tmp /run/lock; do touch $f/x 2>/dev/null && echo $f; done; true"
    )
    done = store.run_read_only(cpu, "bash", "-c", program, lake=tmp_path / "lake")
    assert done.stdout.split() == [str(USER), "/tmp", "/lake"], done.stderr


def test_the_bill_of_materials_is_that_of_the_image(store: ImageStore, cpu: str) -> None:
    document = json.loads(output(store, cpu, "cat", f"/opt/nightrank/{FILE_NAME}"))
    purls = {component.get("purl") for component in document["components"]}
    jars = {component["name"]: component for component in document["components"] if "group" in component}
    for jar in (*s3_client(), *postgresql_driver()):
        assert f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}" in purls
        assert jars[jar.artifact]["hashes"][0]["content"] == jar.sha256
    listed = output(store, cpu, "bash", "-c", "cd $SPARK_HOME/jars && sha256sum *.jar").split()[::2]
    assert sorted(listed) == sorted(component["hashes"][0]["content"] for component in jars.values())
    assert not [
        purl for purl in purls if purl and purl.startswith("pkg:generic/openjdk")
    ]  # Debian's is not ours


def test_only_the_environment_was_copied(store: ImageStore, cpu: str) -> None:
    program = "ls -d /src /root/.cache 2>/dev/null; ls /var/lib/apt/lists; type -P g++ gcc make; true"
    assert output(store, cpu, "bash", "-c", program) == ""


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_no_image_is_larger_than_its_packages(
    store: ImageStore, target: str, request: pytest.FixtureRequest
) -> None:
    program = "du -skx / 2>/dev/null | cut -f1"
    size_gib = int(output(store, request.getfixturevalue(target), "bash", "-c", program)) / 2**20
    print(f"the image {target} has {size_gib:.2f} GiB")
    assert 4 < size_gib < MOST_GIB[target]


def test_spark_has_its_java_and_its_jars(store: ImageStore, cpu: str) -> None:
    done = store.run(cpu)  # the image's own command
    assert done.returncode == 0
    assert re.search(r"OpenJDK .*, 17\.", done.stderr)
    java = output(store, cpu, "bash", "-c", "dpkg --search $(readlink -f $(type -P java))")
    assert java.startswith("openjdk-17-jre-headless:")  # Debian corrects its vulnerabilities
    java_home = output(store, cpu, "python", "-m", "setup.java_home")
    assert java_home == "/usr/lib/jvm/java-17-openjdk-amd64\n"
    assert output(store, cpu, "bash", "-c", "ls $SPARK_HOME/jars | grep -cE 'aws|postgresql'") == "3\n"


def test_an_executor_starts_and_looks_for_its_driver(store: ImageStore, cpu: str) -> None:
    """All classes of an executor on Kubernetes are loaded before it connects to the driver."""
    variables = {
        "MEMORY": "512m",
        "ID": "1",
        "CORES": "1",
        "POD_IP": "127.0.0.1",
        "POD_NAME": "pod",
    }
    named = [f"SPARK_EXECUTOR_{name}={value}" for name, value in variables.items()]
    named += ["SPARK_DRIVER_URL=spark://CoarseGrainedScheduler@127.0.0.1:1", "SPARK_APPLICATION_ID=app"]
    done = store.run(cpu, "executor", variables=[*named, "SPARK_RESOURCE_PROFILE_ID=0"])
    assert done.returncode != 0
    assert "Connection refused: /127.0.0.1:1" in done.stderr


def test_the_cuda_image_can_compile_what_triton_launches(store: ImageStore, cuda: str) -> None:
    program = (
        "import subprocess, sysconfig, torch\n"
        "assert torch.version.cuda\n"
        "source = '#include <Python.h>\\nint main(void) { Py_Initialize(); return 0; }\\n'\n"
        "headers = sysconfig.get_path('include')\n"
        "for compiler, language in (('gcc', 'c'), ('g++', 'c++')):\n"
        "    command = [compiler, '-x', language, '-', '-I', headers, '-c', '-o', '/tmp/launcher.o']\n"
        "    subprocess.run(command, input=source, text=True, check=True)\n"
        "print('compiled')\n"
    )
    assert output(store, cuda, "python", "-c", program) == "compiled\n"
    assert (
        output(store, cuda, "bash", "-c", "ls /opt/nightrank/*.jar") == "/opt/nightrank/rapids-4-spark.jar\n"
    )
    document = json.loads(output(store, cuda, "cat", f"/opt/nightrank/{FILE_NAME}"))
    jar = accelerator()
    assert f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}" in {
        component.get("purl") for component in document["components"]
    }
