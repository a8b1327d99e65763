# Source this (bash or zsh) to work in the project's environment:  . setup/env.sh
# Puts .venv/bin (python, spark-submit, mlflow, pytest) first on PATH, and says which Java and which Python Spark runs on.

_nightrank_root="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)"

if [ ! -x "$_nightrank_root/.venv/bin/python" ]; then
    echo "setup/env.sh: $_nightrank_root/.venv is missing: run 'make setup' first" >&2
    unset _nightrank_root
    return 1
fi

_nightrank_java="$("$_nightrank_root/.venv/bin/python" "$_nightrank_root/setup/java_home.py")" || return 1
export JAVA_HOME="$_nightrank_java"
export PATH="$_nightrank_root/.venv/bin:$JAVA_HOME/bin:$PATH"

# Without these, Spark's Python workers run whatever `python3` the executor finds, which has none of our packages.
export PYSPARK_PYTHON="$_nightrank_root/.venv/bin/python"
export PYSPARK_DRIVER_PYTHON="$PYSPARK_PYTHON"
# Another Spark's home would mix its jars with this pyspark's.
unset SPARK_HOME

# Spark asks for the address of the host's own name, and does not start where that does not resolve (a bare container).
if ! getent hosts "$(uname -n)" >/dev/null; then
    export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"
fi

# Nothing calls home. MLflow imports GitPython, which complains where there is no git.
export MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true GIT_PYTHON_REFRESH=quiet

unset _nightrank_root _nightrank_java
