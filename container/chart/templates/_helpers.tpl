{{/* The name of the release's objects. The name of a CronJob may have 52 characters. */}}
{{- define "nightrank.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The labels by which the network policies choose the pods of the release. */}}
{{- define "nightrank.selector" -}}
app.kubernetes.io/name: nightrank
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nightrank.labels" -}}
{{ include "nightrank.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Not empty if executors run in pods of their own. */}}
{{- define "nightrank.hasExecutors" -}}
{{- if hasPrefix "k8s://" .Values.spark.master }}true{{ end -}}
{{- end -}}

{{/* Not empty if an application of the release uses GPUs: a profile says so, or the limits of a pod. */}}
{{- define "nightrank.hasGpu" -}}
{{- $gpu := false -}}
{{- if include "nightrank.hasExecutors" . -}}
{{- range .Values.profiles }}{{ if hasSuffix "-gpu" . }}{{ $gpu = true }}{{ end }}{{ end -}}
{{- end -}}
{{- range list .Values.nightly .Values.retrain -}}
{{- if hasKey (default dict .resources.limits) "nvidia.com/gpu" }}{{ $gpu = true }}{{ end -}}
{{- end -}}
{{- if $gpu }}true{{ end -}}
{{- end -}}

{{/* The image: (list ROOT, whether it is for GPUs) */}}
{{- define "nightrank.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.version }}-{{ ternary "cuda" "cpu" (index . 1) }}
{{- end -}}

{{- define "nightrank.lake" -}}
{{- default "/lake" .Values.lake.address -}}
{{- end -}}

{{- define "nightrank.claim" -}}
{{- default (printf "%s-lake" (include "nightrank.name" .)) .Values.lake.claim.existing -}}
{{- end -}}

{{/* Stops with a message if values contradict each other, which the schema cannot say clearly. */}}
{{- define "nightrank.check" -}}
{{- $config := required "config is empty: pass the configuration of Nightrank with --set-file config=FILE" .Values.config | fromYaml -}}
{{- if hasKey $config "Error" }}{{ fail (printf "config is not a YAML mapping: %s" $config.Error) }}{{ end -}}
{{- if and .Values.lake.address .Values.lake.claim.existing -}}
{{- fail "lake.address and lake.claim.existing are both set: the lake is either on a store or on a volume, so remove one of them" -}}
{{- end -}}
{{- range .Values.set -}}
{{- if hasPrefix "lake=" . }}{{ fail (printf "set contains %q: set lake.address or lake.claim instead, so that all pods can open the lake" .) }}{{ end -}}
{{- end -}}
{{- $settings := include "nightrank.settings" (list . false) | fromYaml -}}
{{- range $key, $value := .Values.spark.properties -}}
{{- if hasKey $settings $key }}{{ fail (printf "spark.properties contains %s, which the chart sets from other values: change those" $key) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
The Spark settings that follow from values, as YAML: (list ROOT, whether the executors have the image for GPUs). Spark replaces
${env:NAME} by the variable NAME of the driver.
*/}}
{{- define "nightrank.settings" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $name := include "nightrank.name" $root -}}
{{- $settings := dict "spark.master" $values.spark.master -}}
{{- if include "nightrank.hasExecutors" $root -}}
{{- $settings = merge $settings (dict
    "spark.driver.host" "${env:POD_IP}"
    "spark.kubernetes.driver.pod.name" "${env:POD_NAME}"
    "spark.kubernetes.namespace" $root.Release.Namespace
    "spark.kubernetes.authenticate.driver.serviceAccountName" (printf "%s-driver" $name)
    "spark.kubernetes.authenticate.executor.serviceAccountName" (printf "%s-executor" $name)
    "spark.kubernetes.container.image" (include "nightrank.image" (list $root (index . 1)))
    "spark.kubernetes.container.image.pullPolicy" $values.image.pullPolicy
    "spark.kubernetes.executor.podTemplateFile" "/opt/nightrank/conf/site/executor.yaml"
    "spark.executor.instances" ($values.executors.count | int | toString)) -}}
{{- if $values.image.pullSecrets -}}
{{- $_ := set $settings "spark.kubernetes.container.image.pullSecrets" (join "," $values.image.pullSecrets) -}}
{{- end -}}
{{- $volumes := "spark.kubernetes.executor.volumes.persistentVolumeClaim" -}}
{{- if not $values.lake.address -}}
{{- $_ := set $settings (printf "%s.lake.options.claimName" $volumes) (include "nightrank.claim" $root) -}}
{{- $_ := set $settings (printf "%s.lake.mount.path" $volumes) "/lake" -}}
{{- end -}}
{{- if $values.executors.scratch.storageClass -}}
{{- $_ := set $settings (printf "%s.spark-local-dir-1.options.storageClass" $volumes) $values.executors.scratch.storageClass -}}
{{- $_ := set $settings (printf "%s.spark-local-dir-1.options.sizeLimit" $volumes) $values.executors.scratch.size -}}
{{- end -}}
{{- range $variable, $value := $values.environment -}}
{{- $_ := set $settings (printf "spark.executorEnv.%s" $variable) $value -}}
{{- end -}}
{{- range $variable, $source := $values.secrets.environment -}}
{{- if $source.executors -}}
{{- $_ := set $settings (printf "spark.kubernetes.executor.secretKeyRef.%s" $variable) (printf "%s:%s" $source.secret $source.key) -}}
{{- end -}}
{{- end -}}
{{- range $secret, $mount := $values.secrets.files -}}
{{- if $mount.executors -}}
{{- $_ := set $settings (printf "spark.kubernetes.executor.secrets.%s" $secret) $mount.path -}}
{{- end -}}
{{- end -}}
{{- if $values.secrets.spark.name -}}
{{- $_ := set $settings (printf "spark.kubernetes.executor.secrets.%s" $values.secrets.spark.name) "/etc/spark-secret" -}}
{{- $file := printf "/etc/spark-secret/%s" $values.secrets.spark.key -}}
{{- $_ := set $settings "spark.authenticate.secret.file" $file -}}
{{- /* container/entrypoint.sh reads this variable. */ -}}
{{- $_ := set $settings "spark.executorEnv.SPARK_SECRET_FILE" $file -}}
{{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/*
A properties file: (list ROOT, name of a profile). It has the settings of conf/spark, without those that the chart replaces, then
those of the chart.
*/}}
{{- define "nightrank.profile" -}}
{{- $root := index . 0 -}}
{{- $profile := index . 1 -}}
{{- $values := $root.Values -}}
{{- $text := $root.Files.Get (printf "spark/%s.conf" $profile) -}}
{{- $settings := include "nightrank.settings" (list $root (hasSuffix "-gpu" $profile)) | fromYaml -}}
{{- $settings = merge (deepCopy $values.spark.properties) $settings -}}
{{- $replaced := list -}}
{{- range $key, $value := $settings }}{{ $replaced = append $replaced (regexQuoteMeta $key) }}{{ end -}}
{{- if include "nightrank.hasExecutors" $root -}}
{{- $text = printf "%s\n%s" $text ($root.Files.Get "spark/on-kubernetes.conf") -}}
{{- /* Settings of a driver in cluster mode. */ -}}
{{- $replaced = concat $replaced (list `spark\.kubernetes\.driver\.podTemplateFile` `spark\.kubernetes\.driver\.volumes\.\S+`) -}}
{{- if $values.lake.address -}}
{{- $replaced = append $replaced `spark\.kubernetes\.executor\.volumes\.persistentVolumeClaim\.lake\.\S+` -}}
{{- end -}}
{{- if not $values.executors.scratch.storageClass -}}
{{- /* Without a claim for each executor, remove the settings by which drivers own claims and executors take them over. */ -}}
{{- $replaced = concat $replaced (list `spark\.kubernetes\.executor\.volumes\.persistentVolumeClaim\.spark-local-dir-1\.\S+`
    `spark\.kubernetes\.driver\.(?:own|reuse)PersistentVolumeClaim` `spark\.shuffle\.sort\.io\.plugin\.class`) -}}
{{- end -}}
{{- end -}}
{{- range $replaced -}}
{{- $text = regexReplaceAll (printf `(?m)^(?:# [^\n]*\n)*%s[ \t][^\n]*\n` .) $text "" -}}
{{- end -}}
# Made by the chart from conf/spark. The last section has the settings that follow from its values.
{{ $text | trim }}

## Values of the chart
{{ range $key, $value := $settings -}}
{{ $key }} {{ $value }}
{{ end -}}
{{- end -}}

{{/* The template of executors, which Spark reads: that of conf/spark/kubernetes, with the labels and nodes of the release. */}}
{{- define "nightrank.executor" -}}
{{- $pod := .Files.Get "spark/kubernetes/executor.yaml" | fromYaml -}}
{{- $selector := include "nightrank.selector" . | fromYaml -}}
{{- $_ := set $pod.metadata "labels" (merge $selector $pod.metadata.labels) -}}
{{- range $pod.spec.topologySpreadConstraints -}}
{{- $_ := set .labelSelector "matchLabels" (merge (deepCopy $selector) .labelSelector.matchLabels) -}}
{{- end -}}
{{- with .Values.executors.nodeSelector }}{{ $_ := set $pod.spec "nodeSelector" . }}{{ end -}}
{{- $_ := set $pod.spec "tolerations" (concat $pod.spec.tolerations .Values.executors.tolerations) -}}
{{- toYaml $pod -}}
{{- end -}}

{{/*
The template of the pod that submits jobs, which is their driver: that of conf/spark/kubernetes, with the files, variables and secrets of
the release. (list ROOT, arguments of the container, its resources)
*/}}
{{- define "nightrank.driver" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $name := include "nightrank.name" $root -}}
{{- $hasExecutors := include "nightrank.hasExecutors" $root -}}
{{- $pod := $root.Files.Get "spark/kubernetes/driver.yaml" | fromYaml -}}
{{- $_ := set $pod.metadata "labels" (merge (include "nightrank.selector" $root | fromYaml) $pod.metadata.labels) -}}
{{- $_ := set $pod.spec "serviceAccountName" (printf "%s-driver" $name) -}}
{{- $_ := set $pod.spec "automountServiceAccountToken" (not (empty $hasExecutors)) -}}
{{- with $values.driver.nodeSelector }}{{ $_ := set $pod.spec "nodeSelector" . }}{{ end -}}
{{- with $values.driver.tolerations }}{{ $_ := set $pod.spec "tolerations" . }}{{ end -}}
{{- range $values.image.pullSecrets -}}
{{- $_ := set $pod.spec "imagePullSecrets" (append (default list $pod.spec.imagePullSecrets) (dict "name" .)) -}}
{{- end -}}
{{- $container := first $pod.spec.containers -}}
{{- $_ := set $container "image" (include "nightrank.image" (list $root (not (empty (include "nightrank.hasGpu" $root))))) -}}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy -}}
{{- with index . 1 }}{{ $_ := set $container "args" . }}{{ end -}}
{{- with index . 2 }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- $variables := list -}}
{{- range $variable, $value := $values.environment -}}
{{- $variables = append $variables (dict "name" $variable "value" ($value | replace "$" "$$")) -}}
{{- end -}}
{{- range $variable, $source := $values.secrets.environment -}}
{{- $reference := dict "name" $source.secret "key" $source.key -}}
{{- $variables = append $variables (dict "name" $variable "valueFrom" (dict "secretKeyRef" $reference)) -}}
{{- end -}}
{{- with $variables }}{{ $_ := set $container "env" . }}{{ end -}}
{{- $volumes := list (dict "name" "site" "configMap" (dict "name" (printf "%s-site" $name))) -}}
{{- $mounts := list -}}
{{- /* With subPath, a run that has begun never sees the files of a later release. */ -}}
{{- range $file, $text := include "nightrank.site" $root | fromYaml -}}
{{- $mounts = append $mounts (dict "name" "site" "subPath" $file "mountPath" (printf "/opt/nightrank/conf/site/%s" $file) "readOnly" true) -}}
{{- end -}}
{{- if not $values.lake.address -}}
{{- $volumes = append $volumes (dict "name" "lake" "persistentVolumeClaim" (dict "claimName" (include "nightrank.claim" $root))) -}}
{{- $mounts = append $mounts (dict "name" "lake" "mountPath" "/lake") -}}
{{- end -}}
{{- range $secret, $mount := $values.secrets.files -}}
{{- $volumes = append $volumes (dict "name" (printf "files-%s" $secret | replace "." "-" | trunc 63) "secret" (dict "secretName" $secret)) -}}
{{- $mounts = append $mounts (dict "name" (printf "files-%s" $secret | replace "." "-" | trunc 63) "mountPath" $mount.path "readOnly" true) -}}
{{- end -}}
{{- if and $hasExecutors $values.secrets.spark.name -}}
{{- $volumes = append $volumes (dict "name" "spark-secret" "secret" (dict "secretName" $values.secrets.spark.name)) -}}
{{- $mounts = append $mounts (dict "name" "spark-secret" "mountPath" "/etc/spark-secret" "readOnly" true) -}}
{{- end -}}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts $mounts) -}}
{{- $_ := set $pod.spec "volumes" (concat $pod.spec.volumes $volumes) -}}
{{- toYaml $pod -}}
{{- end -}}

{{/* The files below /opt/nightrank/conf/site, as YAML. */}}
{{- define "nightrank.site" -}}
{{- $root := . -}}
{{- $files := dict "config.yaml" .Values.config "run.sh" (.Files.Get "run.sh") -}}
{{- if include "nightrank.hasExecutors" . -}}
{{- range $profile := values .Values.profiles | uniq -}}
{{- $_ := set $files (printf "%s.conf" $profile) (include "nightrank.profile" (list $root $profile)) -}}
{{- end -}}
{{- $_ := set $files "executor.yaml" (include "nightrank.executor" .) -}}
{{- else -}}
{{- $_ := set $files "local.conf" (include "nightrank.profile" (list $root "local")) -}}
{{- end -}}
{{- toYaml $files -}}
{{- end -}}

{{/* The arguments of the container that runs `nightly`: (list ROOT, whether a new model is trained) */}}
{{- define "nightrank.arguments" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $site := "/opt/nightrank/conf/site" -}}
{{- $words := list "sh" (printf "%s/run.sh" $site) -}}
{{- if include "nightrank.hasExecutors" $root -}}
{{- $words = concat $words (list "--profile" (printf "%s/%s.conf" $site $values.profiles.default)) -}}
{{- range $job, $profile := omit $values.profiles "default" -}}
{{- $words = concat $words (list "--job-profile" (printf "%s=%s/%s.conf" $job $site $profile)) -}}
{{- end -}}
{{- else -}}
{{- $words = concat $words (list "--profile" (printf "%s/local.conf" $site)) -}}
{{- end -}}
{{- if index . 1 }}{{ $words = append $words "--retrain" }}{{ end -}}
{{- $words = concat $words (list "--wait" ($values.runs.waitSeconds | int | toString) "--set" (printf "lake=%s" (include "nightrank.lake" $root))) -}}
{{- range $values.set }}{{ $words = concat $words (list "--set" .) }}{{ end -}}
{{- /* Kubernetes would replace $(NAME). */ -}}
{{- range $words }}
- {{ replace "$" "$$" . | quote }}
{{- end -}}
{{- end -}}
