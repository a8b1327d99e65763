#!/usr/bin/env bash
# The entry point of our images. Spark on Kubernetes passes the argument `executor`, or `driver` in cluster mode, and sets further values
# in environment variables. Any other arguments are run as a command.
set -euo pipefail

case "${1:-}" in
driver)
    shift
    set -- spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
executor)
    # The driver takes the base64 of this file as the authentication secret. An executor of Spark 3.5 does not read the file before it
    # has connected to the driver, but it reads this variable.
    if [ -n "${SPARK_SECRET_FILE:-}" ]; then
        _SPARK_AUTH_SECRET=$(base64 --wrap=0 "$SPARK_SECRET_FILE")
        export _SPARK_AUTH_SECRET
    fi
    # Java options: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, and so on, in the order of their numbers.
    options=()
    number=0
    while name="SPARK_JAVA_OPT_$number" && [ -n "${!name+set}" ]; do
        options+=("${!name}")
        number=$((number + 1))
    done
    # The order of the class path: the folder of Spark settings if the pod has one, the entries of the Spark profile, Spark's jars.
    class_path="${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*"
    set -- "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "$class_path" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac

exec tini -s -- "$@"
