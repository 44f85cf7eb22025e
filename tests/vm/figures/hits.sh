#!/bin/bash
# Measures 4 KiB hits: of a part of the SSD itself, of a cache as a ublk device, and of a cache over NBD as a kernel device.
# For each measurement it prints a line of JSON: over (raw, ublk, nbd), depth, operations_per_s, latency_us, server_cpu_us
# and machine_cpu_us (per operation).
#
# Variables: ROUNDS, SECONDS_EACH, and READ_DELAY_MS, which slows the SSD down: the processor is emulated, the disks are not.
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

rounds=${ROUNDS:-5}
seconds=${SECONDS_EACH:-3}
delay_ms=${READ_DELAY_MS:-0}
data_mib=64
cache_mib=112
mib_sectors=2048
ticks_per_s=$(getconf CLK_TCK)

modprobe -a ublk_drv nbd

# part NAME DISK START_MIB SIZE_MIB: /dev/mapper/NAME, whose reads take at least $delay_ms.
part() {
    local start=$(($3 * mib_sectors)) sectors=$(($4 * mib_sectors))
    dmsetup create "$1" --table "0 $sectors delay $2 $start $delay_ms $2 $start 0"
}

part raw "$CACHE" 0 "$data_mib"
part ublk-ssd "$CACHE" 128 "$cache_mib"
part nbd-ssd "$CACHE" 256 "$cache_mib"
dmsetup create ublk-origin --table "0 $((data_mib * mib_sectors)) linear $ORIGIN 0"
dmsetup create nbd-origin --table "0 $((data_mib * mib_sectors)) linear $ORIGIN $((data_mib * mib_sectors))"

for disk in raw ublk-origin nbd-origin; do
    fio --eta=never --name=data --filename="/dev/mapper/$disk" --rw=write --bs=1M --direct=1 --refill_buffers \
        --buffer_compress_percentage=50 --output=/dev/null
done
udevadm settle

flaz create /dev/mapper/ublk-ssd --origin /dev/mapper/ublk-origin >/dev/null 2>&1
flaz create /dev/mapper/nbd-ssd --origin /dev/mapper/nbd-origin >/dev/null 2>&1
flaz serve /dev/mapper/ublk-ssd --ublk=disk --threads 1 >"$serve_log" 2>&1 &
ublk_server=$!
flaz serve /dev/mapper/nbd-ssd --nbd unix:/tmp/nbd.sock --threads 1 >/tmp/nbd.log 2>&1 &
nbd_server=$!
wait_for 60 test -e /dev/flaz/disk
wait_for 60 answers /tmp/nbd.sock
attach /tmp/nbd.sock

cached() {
    flaz status "$1" --json | python3 -c "import json, sys
sys.exit(json.load(sys.stdin)['live']['space']['cached_blocks'] < $((data_mib * 256)))"
}
# warm CACHE DEVICE: reads DEVICE until all of it is cached.
warm() {
    local pass
    for pass in $(seq 40); do
        dd if="$2" of=/dev/null bs=64k iflag=direct status=none
        sleep 0.5
        if cached "$1"; then return; fi
    done
    fail "$2: not all is cached after $pass passes"
}
warm /dev/mapper/ublk-ssd /dev/flaz/disk
warm /dev/mapper/nbd-ssd /dev/nbd0

# server_ticks PID: its processor time.
server_ticks() { sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }
machine_ticks() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }

# measure OVER DEVICE SERVER DEPTH
measure() {
    local server_before=0 server_after=0 machine_before
    machine_before=$(machine_ticks)
    if [ "$3" -ne 0 ]; then server_before=$(server_ticks "$3"); fi
    fio --eta=never --name=hits --filename="$2" --rw=randread --bs=4k --direct=1 --ioengine=io_uring --iodepth="$4" \
        --norandommap --time_based --runtime="$seconds" --output-format=json --output=/tmp/fio.json
    if [ "$3" -ne 0 ]; then server_after=$(server_ticks "$3"); fi
    python3 - "$1" "$4" "$((server_after - server_before))" "$(($(machine_ticks) - machine_before))" "$ticks_per_s" <<'PYTHON'
import json, sys
over, depth, server, machine, ticks_per_s = sys.argv[1], *map(int, sys.argv[2:])
done = json.load(open("/tmp/fio.json"))["jobs"][0]["read"]
cpu_us = lambda ticks: round(ticks * 1e6 / ticks_per_s / done["total_ios"], 1)
print(json.dumps({"over": over, "depth": depth, "operations_per_s": round(done["iops"], 1),
    "latency_us": round(done["lat_ns"]["mean"] / 1000, 1), "server_cpu_us": cpu_us(server), "machine_cpu_us": cpu_us(machine)}))
PYTHON
}

for depth in 1 32; do
    for round in $(seq "$rounds"); do
        order=(raw ublk nbd)
        if [ $((round % 2)) -eq 0 ]; then order=(nbd ublk raw); fi
        for over in "${order[@]}"; do
            case "$over" in
            raw) measure raw /dev/mapper/raw 0 "$depth" ;;
            ublk) measure ublk /dev/flaz/disk "$ublk_server" "$depth" ;;
            nbd) measure nbd /dev/nbd0 "$nbd_server" "$depth" ;;
            esac
        done
    done
done
detach
flaz stop /dev/mapper/ublk-ssd >/dev/null
flaz stop /dev/mapper/nbd-ssd >/dev/null
wait "$ublk_server" "$nbd_server"
