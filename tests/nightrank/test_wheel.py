"""The wheel in an environment without Spark, Horovod and Petastorm: with newer pandas, NumPy and Arrow than ours."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

import nightrank
from setup import python_wheel
from setup.console import SetupError
from setup.install import BOOTSTRAP, ROOT, VENV, site_packages
from tests.etl.lakes.servers import READERS_LOCK, Unavailable, interpreter, missing
from tests.extensions.packages import write_shop
from tests.nightrank.conftest import RUN_DATE, World

pytestmark = pytest.mark.processes

# torch has several GB, so the environment borrows it. Its own requirements are in the lock of the environment.
TORCH = ("torch", "torchgen", "functorch", "nvidia", "triton")
# What modules of jobs import, which the wheel contains but does not use.
FOR_JOBS = {
    "pyspark",
    "py4j",
    "petastorm",
    "horovod",
    "mlflow",
    "faiss",
    "scipy",
    "psutil",
    "deltalake",
    "fastavro",
    "cloudpickle",
}

GROUPS = [
    {"columns": ["C1", "C2"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    {"columns": ["I1"], "kind": "dense", "ops": ["fill_median", "normalize"]},
    {"columns": ["C2"], "kind": "dense", "ops": ["target_encoding"]},
]
TRAINING = {
    "model": {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]},
    "train": {"epochs": 2, "global_batch_size": 256, "device": "cpu"},
}
USE = """
import json, sys
import pandas as pd
import nightrank
root, config, raw, out, groups, training = sys.argv[1:]
rows = pd.read_parquet(raw)
lake = nightrank.open(root)
lake.workflow().encode(rows).to_parquet(out + "/features.parquet")
model = nightrank.open(root, config=config).champion()
pd.DataFrame({"p": model.score(rows)}).to_parquet(out + "/scores.parquet")
users = lake.recommendations().pandas(["user_id"])["user_id"].unique()[:20]
import pyarrow.parquet as pq
pq.write_table(model.recommend(users), out + "/lists.parquet")
lake.users().polars().write_parquet(out + "/users.parquet")
workflow = nightrank.Workflow(json.loads(groups))
workflow.fit_transform(rows).to_parquet(out + "/learned.parquet")
workflow.save(out + "/workflow")
labelled = rows[rows["label"].isin([0, 1])]
settings = json.loads(training)
own = nightrank.Workflow(json.loads(groups)).fit(labelled)
own_model = nightrank.train(own, labelled, validation=labelled, **settings)
own_model.save(out + "/model")
pd.DataFrame({"p": own_model.score(rows)}).to_parquet(out + "/own_scores.parquet")
modules = sorted({name.split(".")[0] for name in sys.modules})
import importlib, pkgutil
import nightrank._internal as inner
missing = {}  # imports that modules do not find: in this process, because they import torch again in another one
for module in pkgutil.walk_packages(inner.__path__, inner.__name__ + "."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[module.name] = error.name
about = {"modules": modules, "file": nightrank.__file__, "pandas": pd.__version__, "missing": missing}
print(json.dumps(about))
"""


@dataclass(frozen=True)
class Installed:
    """The environment, and the wheel that is installed in it."""

    folder: Path
    wheel: Path

    def run(self, *words: str, home: str | None = None) -> subprocess.CompletedProcess[str]:
        variables = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "NIGHTRANK"))
        }
        if home is not None:
            variables["NIGHTRANK_HOME"] = home
        command = [self.folder / "bin" / words[0], *words[1:]]
        return subprocess.run(
            command, cwd="/", env=variables, capture_output=True, text=True, check=False, timeout=240
        )

    def json(self, code: str, *words: str) -> dict[str, object]:
        done = self.run("python", "-c", code, *words)
        assert done.returncode == 0, done.stderr
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return result


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = python_wheel.make_wheel(folder)
    try:
        base = interpreter("readers", READERS_LOCK, "import duckdb, polars, deltalake")
    except Unavailable as why:
        missing(str(why))
    uv = BOOTSTRAP / "bin/uv"
    subprocess.run([uv, "venv", "--quiet", "--python", base.resolve(), folder / "env"], check=True)
    packages = site_packages(folder / "env")
    (packages / "readers.pth").write_text(f"{site_packages(base.parents[1])}\n")
    for name in TORCH:
        (packages / name).symlink_to(site_packages(VENV) / name)
    command = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        folder / "env/bin/python",
        wheel,
    ]
    subprocess.run(command, check=True)
    return Installed(folder / "env", wheel)


def test_it_reads_encodes_scores_and_lists_as_the_checkout_does_and_all_modules_find_their_imports(
    installed: Installed, world: World, tmp_path: Path
) -> None:
    rows = world.raw_rows()
    rows.to_parquet(tmp_path / "raw.parquet")
    files = (str(tmp_path / "raw.parquet"), str(tmp_path))
    used = installed.json(
        USE, world.root, str(world.config), *files, json.dumps(GROUPS), json.dumps(TRAINING)
    )
    assert set(used["missing"].values()) <= FOR_JOBS, used["missing"]  # type: ignore[attr-defined]
    assert str(used["file"]).startswith(str(installed.folder))
    assert str(used["pandas"]) >= "3"
    assert not {"pyspark", "py4j", "horovod", "petastorm", "mlflow", "duckdb"} & set(used["modules"])  # type: ignore[call-overload]
    assert not {"conf", "storage", "etl", "scoring"} & set(used["modules"])  # type: ignore[call-overload]
    features = world.lake.workflow().encode(rows)
    there = pq.read_table(tmp_path / "features.parquet")
    for name in features.columns:
        np.testing.assert_array_equal(there.column(name).to_numpy(), features[name].to_numpy())
    scores = pq.read_table(tmp_path / "scores.parquet").column("p").to_numpy()
    np.testing.assert_allclose(scores, world.lake.champion().score(rows).to_numpy(), rtol=1e-6)
    lists, published = pq.read_table(tmp_path / "lists.parquet"), world.lake.recommendations(RUN_DATE).arrow()
    users = set(lists.column("user_id").to_pylist())
    wanted = [row for row in published.to_pylist() if row["user_id"] in users]
    for row, other in zip(lists.to_pylist(), wanted, strict=True):
        assert {**row, "score": 0} == {**{name: other[name] for name in row}, "score": 0}
        assert row["score"] == pytest.approx(other["score"], rel=1e-6)
    assert pq.read_table(tmp_path / "users.parquet").num_rows == world.lake.users().rows
    saved = nightrank.Workflow.load(tmp_path / "workflow")
    own = nightrank.Workflow(GROUPS)
    learned, here = pq.read_table(tmp_path / "learned.parquet"), own.fit_transform(rows)
    assert saved.version == own.version
    for name in ("C1", "C2", "I1", "C2_te"):
        np.testing.assert_array_equal(learned.column(name).to_numpy(), here[name].to_numpy())
    labelled = rows[rows["label"].isin([0, 1])]
    trained = nightrank.train(
        nightrank.Workflow(GROUPS).fit(labelled), labelled, validation=labelled, **TRAINING
    )
    own_scores = pq.read_table(tmp_path / "own_scores.parquet").column("p").to_numpy()
    np.testing.assert_allclose(own_scores, trained.score(rows).to_numpy(), rtol=1e-4)
    np.testing.assert_allclose(nightrank.Model.load(tmp_path / "model").score(rows), own_scores, rtol=1e-5)


def test_nothing_else_gets_to_the_top_level(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as packed:
        tops = {name.split("/")[0] for name in packed.namelist()}
    assert len(tops) == 2
    assert tops >= {"nightrank"}
    assert "linux_x86_64" in installed.wheel.name


def test_what_it_declares_is_what_the_test_installed(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith("/METADATA")]
        metadata = message_from_string(packed.read(name).decode())
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    assert {one.name for one in needed if one.marker is None} == {
        "numpy",
        "pyarrow",
        "pydantic",
        "pyyaml",
        "xxhash",
    }
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    there = {"numpy", "pyarrow", "pydantic", "pyyaml", "xxhash", "pandas", "polars", "safetensors"}
    versions = installed.json(code, *sorted(there))
    for one in needed:
        for_spark = "spark" in str(one.marker)  # pyspark 4.3 does not support the pandas of this test
        assert for_spark or one.name not in there or one.specifier.contains(str(versions[one.name]))


def declared() -> dict[str, set[str]]:
    """The packages of each extra of the wheel."""
    metadata = tomllib.loads(python_wheel._METADATA.format(version="0", project="p"))["project"]
    return {
        extra: {Requirement(text).name for text in needed}
        for extra, needed in metadata["optional-dependencies"].items()
    }


def test_every_remedy_names_an_extra_with_the_packages_that_are_missing() -> None:
    extras, checked = declared(), set()
    calls = [
        node
        for folder in ("nightrank", *python_wheel.INNER_PACKAGES)
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"require_packages|missing_package", text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    for call in calls:
        if call.func.id == "require_packages":  # type: ignore[attr-defined]
            names, extra = call.args[:2]
            if isinstance(names, ast.List) and isinstance(names.elts[0], ast.Name):
                continue  # the kind of a frame, which is the name of the extra
            wanted = set(ast.literal_eval(names))
        elif call.func.id == "missing_package":  # type: ignore[attr-defined]
            wanted, extra = set(ast.literal_eval(call.args[1]).split()), call.args[2]
        else:
            continue
        name = ast.literal_eval(extra)
        assert wanted <= extras[name], f"the extra {name} does not install {wanted - extras[name]}"
        checked.add(name)
    assert {
        "models",
        "recommender",
        "plots",
        "online",
        "export",
        "pandas",
        "polars",
        "hdfs",
        "azure",
    } <= checked


def test_the_page_lists_every_extra() -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    table = page[page.index("| extra |") : page.index("## Open a lake")]
    listed = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z]+)`", line.split("|")[1])
    }
    assert listed == set(declared())


FIT = """
import json, sys, time
began = time.monotonic()
import matplotlib
matplotlib.use("Agg")
import nightrank, numpy as np, pandas as pd
rng = np.random.default_rng(0)
log = pd.DataFrame({
    "user_id": [f"u{i}" for i in rng.integers(0, 40, 1500)],
    "item_id": [f"i{i}" for i in rng.integers(0, 30, 1500)],
    "time": np.arange(1500) + 1_700_000_000,
})
recommender = nightrank.Recommender("neumf", epochs=1).fit(log)
lists = recommender.recommend(["u1", "u2"], k=3)
rows = pd.DataFrame({"shop": [f"s{i % 7}" for i in range(400)], "price": np.arange(400) % 13})
clicks = (rows["price"] > 6).astype(int)
classifier = nightrank.ClickClassifier("deepfm", embedding_dim=4, epochs=2).fit(rows, clicks)
from sklearn.model_selection import cross_val_score
fits = cross_val_score(classifier, rows, clicks, cv=2)
axes = classifier.model_.plot_roc(rows, clicks)
axes.figure.savefig(sys.argv[1])
import duckdb, mlflow, pyspark, torch
print(json.dumps({
    "lists": len(lists),
    "reasons": sorted(set(lists["reason"])),
    "auc": float(min(fits)),
    "polars": len(nightrank.Recommender("neumf", epochs=1).fit(__import__("polars").from_pandas(log)).recommend(["u1"], k=2)),
    "petastorm": "petastorm" in sys.modules,
    "versions": {one.__name__: one.__version__ for one in (np, pd, pyspark, torch, duckdb)},
    "seconds": time.monotonic() - began,
}))
"""


@pytest.mark.large
@pytest.mark.timeout(1500)
def test_pip_installs_all_extras_from_the_index_and_the_package_trains_recommends_and_plots(
    tmp_path: Path,
) -> None:
    """No lock file, no other environment: what a person gets who runs `pip install` today."""
    wheel = python_wheel.make_wheel(tmp_path)
    subprocess.run([VENV / "bin/python", "-m", "venv", tmp_path / "env"], check=True)
    extras = ",".join(sorted(declared()))
    command = [tmp_path / "env/bin/python", "-m", "pip", "install", "--quiet", f"{wheel}[{extras}]"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and ("Connection" in done.stderr or "Retrying" in done.stderr):
        missing(f"there is no package index: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    installing_s = time.monotonic() - began
    result: dict[str, Any] = Installed(tmp_path / "env", wheel).json(FIT, str(tmp_path / "roc.png"))
    print(f"pip: {installing_s:.0f} s, then {result['seconds']:.0f} s with {result['versions']}")
    assert (result["lists"], result["reasons"], result["polars"]) == (6, ["ranked"], 2)
    assert result["auc"] > 0.9
    assert not result["petastorm"]
    assert (tmp_path / "roc.png").read_bytes().startswith(b"\x89PNG")


def test_equal_sources_give_equal_bytes(installed: Installed, tmp_path: Path) -> None:
    assert python_wheel.make_wheel(tmp_path).read_bytes() == installed.wheel.read_bytes()


def test_a_command_that_needs_the_project_says_how_to_get_it(installed: Installed, tmp_path: Path) -> None:
    done = installed.run("nightrank", "run", "--help")
    assert done.returncode == 2
    assert "run `nightrank setup`" in done.stderr
    assert "Traceback" not in done.stderr
    wrong = installed.run("nightrank", "run", "--help", home=str(tmp_path))
    assert wrong.returncode == 2
    assert f"NIGHTRANK_HOME={tmp_path} is not an installed project" in wrong.stderr


def test_setup_keeps_foreign_files_and_names_what_it_lacks(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = installed.run("nightrank", "setup", "--folder", str(tmp_path), "--python", sys.executable)
    assert done.returncode == 2
    assert "contains other files" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert "python9 is not on PATH" in installed.run("nightrank", "setup", "--python", "python9").stderr


def test_a_model_without_torch_says_what_to_install(installed: Installed, world: World) -> None:
    code = """
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
import pandas as pd, nightrank
try:
    nightrank.open(sys.argv[1]).champion().score(pd.DataFrame())
except nightrank.ConfigError as error:
    print('"' + error.remedy + '"')
"""
    done = installed.run("python", "-c", code, world.root)
    assert done.stdout.strip() == "\"pip install 'nightrank[models]'\""


@pytest.mark.parametrize(
    "source, expected",
    [
        ("from conf.errors import A\n", "from nightrank._internal.conf.errors import A\n"),
        ("def f():\n    from  etl.ops import B  # conf.errors\n", "def f():\n    from  nightrank._internal.etl.ops import B  # conf.errors\n"),
        ("é = 'ü'; from conf import x\n", "é = 'ü'; from nightrank._internal.conf import x\n"),
        ("M = 'training.models'\n", "M = 'nightrank._internal.training.models'\n"),
        ("M = 'training.nothing', 'conf', 'see conf.errors', 'nightrank.lake'\n", None),
        ("from configparser import a\nfrom nightrank.lake import b\nimport numpy as np\n", None),
    ],
)  # fmt: skip
def test_imports_get_the_prefix(source: str, expected: str | None) -> None:
    assert python_wheel.rewritten(source) == (expected or source)


def test_an_import_without_from_is_refused() -> None:
    with pytest.raises(SetupError, match=r"from conf\.errors import"):
        python_wheel.rewritten("import conf.errors\n")


def test_an_operator_of_another_package_works_beside_it(installed: Installed, tmp_path: Path) -> None:
    """The package imports only from nightrank.extending."""
    write_shop(tmp_path)
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pandas as pd, nightrank
groups = [{"columns": ["I1"], "kind": "dense", "ops": ["share_of_maximum"]}]
features = nightrank.Workflow(groups).fit_transform(pd.DataFrame({"I1": [1, 4]}))
tops = {name.split(".")[0] for name in sys.modules}
print(json.dumps({"features": features["I1"].tolist(), "ours": sorted(tops & {"conf", "etl", "pyspark"})}))
"""
    assert installed.json(code, str(tmp_path)) == {"features": [0.25, 1.0], "ours": []}
