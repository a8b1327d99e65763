"""The settings of a Spark profile that decide what a node needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError
from spark.profile import read_properties
from spark.session import PLUGIN

PROFILES = Path(__file__).resolve().parents[2] / "conf/spark"

_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# Tasks with at least this share of a GPU use torch on it. etl-gpu.conf sets 0.001, only so that GPUs do not
# limit the number of tasks.
_TORCH_SHARE = 0.01
# The defaults of Spark 3.5 (spark.apache.org/docs/3.5.9/configuration.html).
_MEMORY, _OVERHEAD_SHARE, _LEAST_OVERHEAD = "1g", 0.1, 384 * 2**20


@dataclass(frozen=True)
class Profile:
    """The settings of one or several properties files.

    Attributes:
        names: the files as the user named them.
        settings: Spark's settings. If several files have a setting, the value is that of the last file.
    """

    names: tuple[str, ...]
    settings: Mapping[str, str]

    def get(self, key: str) -> str | None:
        """Returns the value of a setting; None if the profile does not have it."""
        return self.settings.get(key)

    @property
    def accelerated(self) -> bool:
        """Returns whether sessions start the RAPIDS Accelerator."""
        return PLUGIN in [plugin.strip() for plugin in (self.get("spark.plugins") or "").split(",")]

    @property
    def wants_gpus(self) -> bool:
        """Returns whether executors have GPUs."""
        return float(self.get("spark.executor.resource.gpu.amount") or 0) > 0

    @property
    def torch_on_gpus(self) -> bool:
        """Returns whether tasks use a share of a GPU for torch, not only for the accelerator."""
        return self.wants_gpus and float(self.get("spark.task.resource.gpu.amount") or 0) >= _TORCH_SHARE

    @property
    def local_threads(self) -> str | None:
        """Returns N or `*` if the master is `local[N]`; None for other masters, or without a master."""
        master = self.get("spark.master") or ""
        if master == "local":
            return "1"
        match = re.fullmatch(r"local\[(\d+|\*)(,\d+)?\]", master)
        return match[1] if match else None

    @property
    def driver_bytes(self) -> int:
        """Returns the memory of the driver's heap."""
        return size_of("spark.driver.memory", self.get("spark.driver.memory") or _MEMORY)

    @property
    def executor_bytes(self) -> int:
        """Returns the memory of one executor: its heap, and its memory outside the heap."""
        heap = size_of("spark.executor.memory", self.get("spark.executor.memory") or _MEMORY)
        stated = self.get("spark.executor.memoryOverhead")
        share = float(self.get("spark.executor.memoryOverheadFactor") or _OVERHEAD_SHARE)
        overhead = max(int(heap * share), _LEAST_OVERHEAD)
        return heap + (overhead if stated is None else size_of("spark.executor.memoryOverhead", stated))


def read_profile(names: Sequence[str], master: str | None = None) -> Profile:
    """Reads properties files. A name is a path, or the name of a file in conf/spark without `.conf`.

    `master` replaces the master of the profile, as the option --master of spark-submit does.

    Raises:
        ConfigError: there is no such file.
    """
    settings: dict[str, str] = {}
    for name in names:
        path = Path(name) if Path(name).is_file() else PROFILES / f"{name}.conf"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in PROFILES.glob("*.conf")))
            raise ConfigError(
                f"--profile: there is no file {name} and no profile of this name",
                f"give the path of a properties file, or one of: {known}",
            )
        settings |= read_properties(path)
    if master is not None:
        settings["spark.master"] = master
    return Profile(tuple(names), settings)


def size_of(key: str, text: str) -> int:
    """Returns the bytes of a Spark setting such as `8g` or `512m`. A number without a unit is in MiB.

    Raises:
        ConfigError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{key}={text} is not a size", "write a number and k, m, g or t, such as 8g")
    return int(match[1]) * _UNITS[match[2].lower() or "m"]
