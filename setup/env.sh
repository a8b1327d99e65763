# Source this (bash or zsh) to work in the project's environment:  . setup/env.sh
# Puts the bin folder of .venv first on PATH (python, spark-submit, mlflow), and sets the Java and the Python that Spark uses.
# In an unpacked archive, the folder `environment` is used instead of .venv.

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

# Without these variables, Spark's Python workers run any `python3` that the executor finds, without our packages.
export PYSPARK_PYTHON="$_nightrank_home/bin/python"
export PYSPARK_DRIVER_PYTHON="$PYSPARK_PYTHON"
# If .venv is a link to the environment of another checkout, Python would import the packages of that checkout.
if [ -L "$_nightrank_root/.venv" ]; then
    export NIGHTRANK_HOME="$_nightrank_root"
    case ":${PYTHONPATH:-}:" in
        *":$_nightrank_root:"*) ;;
        *) export PYTHONPATH="$_nightrank_root${PYTHONPATH:+:$PYTHONPATH}" ;;
    esac
fi
# If SPARK_HOME named another Spark, the jars of both would be mixed.
unset SPARK_HOME

# A driver starts sooner if it loads its classes from this archive (setup/class_archive.py).
if [ -f "$_nightrank_home/spark.jsa" ]; then
    case "${SPARK_SUBMIT_OPTS:-}" in
        *SharedArchiveFile*) ;;
        *) export SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$_nightrank_home/spark.jsa -Xlog:cds=off -Xlog:class+path=off${SPARK_SUBMIT_OPTS:+ $SPARK_SUBMIT_OPTS}" ;;
    esac
fi

# spark-class starts a separate, short JVM to build the command line. These options make it start faster.
export SPARK_LAUNCHER_OPTS="${SPARK_LAUNCHER_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1}"

# Spark resolves the name of the host. If it cannot (as in a bare container), it does not start.
if ! getent hosts "$(uname -n)" >/dev/null; then
    export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"
fi

# Disables telemetry. GIT_PYTHON_REFRESH prevents a warning of GitPython, which MLflow imports, if git is not installed.
export MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true GIT_PYTHON_REFRESH=quiet

unset _nightrank_root _nightrank_home _nightrank_java
