#!/usr/bin/env bash
# What a container of ours runs. Spark on Kubernetes starts pods with the word `executor`, and in cluster mode `driver`, and says
# the rest in variables; everything else is a command of its own.
set -euo pipefail

case "${1:-}" in
driver)
    shift
    set -- spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
executor)
    # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …, in the order of their numbers.
    options=()
    number=0
    while name="SPARK_JAVA_OPT_$number" && [ -n "${!name+set}" ]; do
        options+=("${!name}")
        number=$((number + 1))
    done
    # Where the pod has a folder of Spark settings, it comes first; what a profile adds to the class path, next.
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
