#!/bin/bash
# Measures caches on the same disks with the same data and requests, one after another, and prints a line of JSON for each.
# Environment: CELLS, SAVED_PCT, WARM_REQUESTS, REQUESTS; RESUME, a cell of the workload crash that the last boot began. A cell
# is SYSTEM,MODE,SSD_MIB,WORKING_MIB,WORKLOAD,SEED; SYSTEM is bare, dmcache, vdo, bcache or flaz:CODEC; WORKLOAD is a function
# work_NAME of workloads.sh.
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh
# shellcheck source=tests/vm/peers/devices.sh
. /flaz/devices.sh
# shellcheck source=tests/vm/peers/systems.sh
. /flaz/systems.sh
# shellcheck source=tests/vm/peers/workloads.sh
. /flaz/workloads.sh

# read_cell CELL: sets its variables.
read_cell() {
    # shellcheck disable=SC2034 # of the other files
    IFS=, read -r system mode ssd_mib working_mib workload seed <<<"$1"
    # shellcheck disable=SC2034
    family=${system%%:*} codec=${system#*:} requests_done=0
}

modprobe ublk_drv
modprobe dm-cache-smq
if [ -n "${RESUME:-}" ]; then
    read_cell "$RESUME"
    after_crash
else
    fill
    echo "peers: {\"phase\":\"data\",\"saved_pct\":$SAVED_PCT,\"achieved_pct\":$(saved),\"kernel\":\"$(uname -r)\"}"
fi
for one in $CELLS; do
    started_s=$SECONDS
    read_cell "$one"
    wipe
    "work_$workload"
    "${family}_end"
    unslice
    echo "cell $one: $((SECONDS - started_s)) s"
done
