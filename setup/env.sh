# Source this (bash or zsh) to work in the project's environment:  . setup/env.sh
# Puts the bin folder of .venv, or of the unpacked environment beside an archive's files, first on PATH (python, spark-submit,
# mlflow), and says which Java and which Python Spark runs on.

_nightrank_root="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)"

_nightrank_home="$_nightrank_root/.venv"
if [ ! -x "$_nightrank_home/bin/python" ]; then
    _nightrank_home="$_nightrank_root/environment"
fi
if [ ! -x "$_nightrank_home/bin/python" ]; then
    echo "setup/env.sh: $_nightrank_root/.venv is missing: run 'make setup' first, or unpack environment.tar.gz of an archive" >&2
    unset _nightrank_root _nightrank_home
    return 1
fi

_nightrank_java="$("$_nightrank_home/bin/python" "$_nightrank_root/setup/java_home.py")" || return 1
export JAVA_HOME="$_nightrank_java"
export PATH="$_nightrank_home/bin:$JAVA_HOME/bin:$PATH"

# Without these, Spark's Python workers run whatever `python3` the executor finds, which has none of our packages.
export PYSPARK_PYTHON="$_nightrank_home/bin/python"
export PYSPARK_DRIVER_PYTHON="$PYSPARK_PYTHON"
# Another Spark's home would mix its jars with this pyspark's.
unset SPARK_HOME

# Classes from an archive: a driver starts sooner (setup/class_archive.py).
if [ -f "$_nightrank_home/spark.jsa" ]; then
    case "${SPARK_SUBMIT_OPTS:-}" in
        *SharedArchiveFile*) ;;
        *) export SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$_nightrank_home/spark.jsa -Xlog:cds=off -Xlog:class+path=off${SPARK_SUBMIT_OPTS:+ $SPARK_SUBMIT_OPTS}" ;;
    esac
fi

# spark-class asks a JVM of its own for the command line that it runs.
export SPARK_LAUNCHER_OPTS="${SPARK_LAUNCHER_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1}"

# Spark asks for the address of the host's own name, and does not start where that does not resolve (a bare container).
if ! getent hosts "$(uname -n)" >/dev/null; then
    export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"
fi

# Nothing calls home. MLflow imports GitPython, which complains where there is no git.
export MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true GIT_PYTHON_REFRESH=quiet

unset _nightrank_root _nightrank_home _nightrank_java
