"""A process that refuses pandas converts values without it, and has it again when it is allowed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
import sys
from conf.lazy_imports import allow_pandas, refuse_pandas
refuse_pandas()
refuse_pandas()
import pyarrow as pa
assert pa.array([1, None]).null_count == 1
assert "pandas" not in sys.modules
try:
    import pandas
except ModuleNotFoundError as error:
    print(error)
allow_pandas()
allow_pandas()
import numpy as np
import pandas as pd
assert pa.array(pd.Series([1.0, np.nan])).null_count == 1, "pyarrow treats it as a series of pandas"
refuse_pandas()
import pandas
print("again")
"""


def test_pandas_is_refused_until_it_is_allowed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "this process must not import pandas\nagain\n",
        "",
    )
