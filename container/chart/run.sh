#!/bin/sh
# Runs `nightly` for the day before the scheduled time of the Job, or for the day in RUN_DATE. The arguments go to `nightly`.
set -eu

run_date="${RUN_DATE:-}"
if [ -z "$run_date" ]; then
    # The controller of CronJobs ends the name of each Job with its scheduled time, in minutes since 1970. A retry on the next day
    # therefore has the same run date.
    minutes="${JOB_NAME##*-}"
    case "$minutes" in
    [0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]) ;;
    *) minutes=0 ;;
    esac
    if [ "$minutes" -lt 29000000 ]; then # 2025-02-19; smaller numbers are others, such as 20260108
        echo "the name of the Job, $JOB_NAME, does not end with the scheduled time of a CronJob" >&2
        echo "  what to do: set the variable RUN_DATE of the Job to a date such as 2026-01-08" >&2
        exit 2
    fi
    if [ ! -e "/usr/share/zoneinfo/$TIME_ZONE" ]; then # date would take UTC
        echo "the image does not have the time zone $TIME_ZONE" >&2
        echo "  what to do: install Debian's package tzdata in the image, or set timeZone to Etc/UTC" >&2
        exit 2
    fi
    day=$(TZ="$TIME_ZONE" date -d "@$((minutes * 60))" +%F)
    run_date=$(date -u -d "$day 1 day ago" +%F)
fi
exec python jobs/nightly.py --config conf/site/config.yaml --run-date "$run_date" "$@"
