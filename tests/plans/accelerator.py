"""The real RAPIDS Accelerator, which explains without a GPU what it would run on one.

Its jar is loaded into the running JVM by a class loader of its own. These tests can therefore use the shared
session, and other tests do not see the jar. The plugin is not started: `ExplainPlan` checks the physical plan
by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from spark.session import SHIM_OVERRIDE, shim_for, shims_of

PREFIX = "com.nvidia.spark.rapids"
_NODE = re.compile(r"^ *!\w* <(?P<node>\w+)> (?P<text>.*?) ?cannot run on GPU because (?P<reason>.*)$")
_PARTLY = re.compile(r"^ *\*\w* <(?P<node>\w+)> .*?(?P<reason>will partially run on GPU)")
# What is said of a node because of another, which is named with its own reason.
_FOLLOWS = (
    "not all expressions can be replaced",
    "Columnar exchange without columnar children is inefficient",
)


@dataclass(frozen=True)
class Fallback:
    """A node of a plan (an exec or an expression) that would stay on the CPU, and one reason of the
    accelerator.
    """

    node: str
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}" + (f"  [{self.text[:200]}]" if self.text else "")


def fallbacks(explained: str) -> list[Fallback]:
    """Returns what cannot run on a GPU by an explanation. Nodes that fall back only because of others are
    left out.

    Raises:
        ValueError: the text explains no plan at all.
    """
    if "<" not in explained or "Exec" not in explained:
        raise ValueError(f"this explains no plan: {explained[:300]!r}")
    result = []
    for line in explained.splitlines():
        match = _NODE.match(line)
        if match:
            reasons = [reason.strip() for reason in match["reason"].split(";")]
            independent = [reason for reason in reasons if reason and not reason.startswith(_FOLLOWS)]
            result += [Fallback(match["node"], reason, match["text"]) for reason in independent]
        elif match := _PARTLY.match(line):
            result.append(Fallback(match["node"], match["reason"], ""))
        elif line.lstrip().startswith("!"):
            raise ValueError(f"an explanation in a form we do not know: {line!r}")
    return result


class Accelerator:
    """The jar inside a session's JVM. Use through `loaded`."""

    def __init__(self, spark: SparkSession, loader: Any) -> None:
        self._spark, self._loader = spark, loader
        self._jvm, self._gateway = spark._jvm, spark.sparkContext._gateway
        assert self._jvm is not None
        assert self._gateway is not None
        shims = self._class("ShimLoader")
        self._shims = self._method(shims, "getShimClassLoader").invoke(None, self._array())
        self._explain = self._method(self._class("ExplainPlan"), "explainPotentialGpuPlan")

    def explain(self, rows: DataFrame) -> str:
        """Returns the physical plan of a frame, one node a line.

        Marks: `*` runs on a GPU, `!` does not, and `@` could but for its parent.
        """
        return self._explain_java(rows._jdf)

    def explain_write(self, writer: DataFrameWriter, path: str) -> str:
        """The same for writing a frame as Parquet, with the options the writer has; nothing is written."""
        return self._explain_java(self.write_command(writer, path))

    def write_command(self, writer: DataFrameWriter, path: str) -> Any:
        """The Java frame of a write command that was planned and not run."""
        jvm, session, rows = self._jvm, self._spark._jsparkSession, writer._df._jdf
        options = writer._jwrite.getClass().getDeclaredField("extraOptions")
        options.setAccessible(True)
        nothing, none = jvm.PythonUtils.toSeq([]), jvm.scala.Option.empty()
        source = jvm.org.apache.spark.sql.execution.datasources.DataSource(
            session,
            "parquet",
            jvm.PythonUtils.toSeq([path]),
            none,
            nothing,
            none,
            options.get(writer._jwrite),
            none,
        )
        command = source.planForWriting(jvm.org.apache.spark.sql.SaveMode.ErrorIfExists, rows.logicalPlan())
        skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        execution = session.sessionState().executePlan(command, skip)
        encoder = jvm.org.apache.spark.sql.Encoders.row(execution.analyzed().schema())
        return jvm.org.apache.spark.sql.Dataset(execution, encoder)

    def settings(self) -> dict[str, Any]:
        """Every key this version knows → its entry, whose `get` of a map of settings checks the value."""
        self._jvm.java.lang.Class.forName(
            f"{PREFIX}.python.PythonConfEntries$", True, self._shims
        )  # adds its own
        companion = self._jvm.java.lang.Class.forName(f"{PREFIX}.RapidsConf$", True, self._shims)
        module = companion.getField("MODULE$").get(None)
        registered = companion.getDeclaredField("registeredConfs")
        registered.setAccessible(True)
        entries = registered.get(module).iterator()
        entry_by_key = {}
        while entries.hasNext():
            entry = entries.next()
            entry_by_key[entry.key()] = entry
        return entry_by_key

    def rejected(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Keys among `spark.rapids.*` that this version does not know, or whose values it refuses → why."""
        known = self.settings()
        java = self._jvm.java.util.HashMap()
        for key, value in settings.items():
            java.put(key, value)
        refusals = {}
        for key in (name for name in settings if name.startswith("spark.rapids.")):
            if key not in known:
                refusals[key] = "no such setting"
                continue
            getters = [
                method
                for method in known[key].getClass().getMethods()
                if method.getName() == "get" and method.getParameterTypes()[0].getSimpleName() == "Map"
            ]
            arguments = self._array(self._jvm.PythonUtils.toScalaMap(java))
            getters[0].setAccessible(True)
            try:
                getters[0].invoke(known[key], arguments)
            except Py4JJavaError as error:
                refusals[key] = str(error.java_exception.getCause())
        return refusals

    def _explain_java(self, rows: Any) -> str:
        return str(self._explain.invoke(None, self._array(rows, "ALL")))

    def _class(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(f"{PREFIX}.{name}", True, self._loader)

    def _method(self, of: Any, name: str) -> Any:
        return next(method for method in of.getMethods() if method.getName() == name)

    def _array(self, *values: Any) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(values))
        for place, value in enumerate(values):
            array[place] = value
        return array


@contextmanager
def loaded(spark: SparkSession, jar: Path, settings: Mapping[str, str]) -> Iterator[Accelerator]:
    """The accelerator in this session's JVM, under the `spark.rapids.*` settings of a profile.

    The jar's shim is the one that a session would get (spark/session.py).
    """
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    core, thread = spark._jsc.sc().conf(), jvm.java.lang.Thread.currentThread()
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(jar)).toURI().toURL()
    before = thread.getContextClassLoader()
    loader = jvm.org.apache.spark.util.MutableURLClassLoader(urls, before)
    core.set(SHIM_OVERRIDE, shim_for(spark.version, shims_of(jar), jar).provider)
    thread.setContextClassLoader(loader)
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield Accelerator(spark, loader)
    finally:
        for key in settings:
            spark.conf.unset(key)
        thread.setContextClassLoader(before)
        core.remove(SHIM_OVERRIDE)
