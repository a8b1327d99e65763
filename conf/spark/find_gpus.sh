#!/usr/bin/env bash
# Prints the GPUs of this machine as Spark wants them from a discovery script: {"name": "gpu", "addresses": ["0", "1"]}
set -euo pipefail
indices="$(nvidia-smi --query-gpu=index --format=csv,noheader)"
addresses="$(sed 's/.*/"&"/' <<<"$indices" | paste -sd ,)"
printf '{"name": "gpu", "addresses": [%s]}\n' "$addresses"
