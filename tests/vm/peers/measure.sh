#!/bin/bash
# Measures caches on the same disks with the same data and requests, one after another, and prints a line of JSON for each.
# Environment: CELLS, SAVED_PCT, WARM_REQUESTS, REQUESTS. A cell is SYSTEM,MODE,SSD_MIB,WORKING_MIB,WORKLOAD,SEED; SYSTEM
# is bare, dmcache, bcache or flaz:CODEC; WORKLOAD is zipf, mixed, scan or restart.
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh
# shellcheck source=tests/vm/peers/devices.sh
. /flaz/devices.sh
# shellcheck source=tests/vm/peers/systems.sh
. /flaz/systems.sh

# zipf_phase PHASE SEED: counted zipf reads.
zipf_phase() { counted "$1" requests zipf "$device" "$REQUESTS" "$2"; }

cell() {
    local family warm_kind=zipf
    IFS=, read -r system mode ssd_mib working_mib workload seed <<<"$1"
    family=${system%%:*} codec=${system#*:} requests_done=0
    [ "$workload" != mixed ] || warm_kind=mixed
    wipe
    "${family}_start"
    requests "$warm_kind" "$device" "$WARM_REQUESTS" "$seed"
    settle
    case "$workload" in
    zipf) zipf_phase zipf $((seed + 1000)) ;;
    mixed) counted mixed requests mixed "$device" "$REQUESTS" $((seed + 1000)) ;;
    scan)
        zipf_phase before-scan $((seed + 1000))
        counted scan scan "$device"
        zipf_phase after-scan $((seed + 2000))
        ;;
    restart)
        zipf_phase before-restart $((seed + 1000))
        "${family}_restart"
        zipf_phase after-restart $((seed + 2000))
        if [ "$family" = flaz ]; then
            flaz_crash
            zipf_phase after-kill $((seed + 3000))
        fi
        ;;
    *) fail "unknown workload: $workload" ;;
    esac
    "${family}_end"
    unslice
}

modprobe ublk_drv
modprobe dm-cache-smq
fill
echo "peers: {\"phase\":\"data\",\"saved_pct\":$SAVED_PCT,\"achieved_pct\":$(saved),\"kernel\":\"$(uname -r)\"}"
for one in $CELLS; do
    started_s=$SECONDS
    cell "$one"
    echo "cell $one: $((SECONDS - started_s)) s"
done
