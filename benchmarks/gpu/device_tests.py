"""Runs the tests of kernels, of rows in two memories, and of ranks on one GPU. It measures nothing.

    python benchmarks/gpu/device_tests.py

The tests are those of tests/training that use a GPU if there is one. They run without the fixtures of
tests/conftest.py, so they need only torch, Triton, pytest and hypothesis, and no Spark. The ratio `passed` is the
share of the tests that passed, without those that were skipped. Without a GPU, the script selects
only tests that need one, so all tests are skipped.

Exit codes: 0 no test failed, 1 a test failed or could not be imported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.setting import ROOT, read_setting
from benchmarks.report import summary_line

OF_GPUS = ("test_cuda_ranks",)
OF_KERNELS = ("test_kernels", "test_kernel_steps", "test_kernel_ranks", "test_tiered_training")


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    names = OF_GPUS + OF_KERNELS if setting.measures else OF_GPUS
    files = [f"tests/training/{name}.py" for name in names]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        options = ["--noconftest", "-c", "/dev/null", "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=short",
            f"--junitxml={report}",
            *options,
            *files,
        ]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        counts = outcomes(report) if report.exists() else Counter({"error": 1})
    ran = counts["passed"] + counts["failure"] + counts["error"]
    passed = counts["passed"] / ran if ran and setting.measures else None
    print(summary_line("gpu_device_tests", setting.machine(), dict(counts), {}, {"passed": passed}))
    return 0 if code == 0 else 1


def outcomes(report: Path) -> Counter[str]:
    """Returns the number of tests by outcome: passed, skipped, failure, error."""
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"skipped", "failure", "error"}
        counts[min(kinds) if kinds else "passed"] += 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
