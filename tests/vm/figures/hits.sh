#!/bin/bash
# Measures 4 KiB hits: of a part of the SSD itself, of a cache as a ublk device, and of a cache over NBD as a kernel device.
# For each measurement it prints a line of JSON: over (raw, ublk, nbd), depth, operations_per_s, latency_us, server_cpu_us
# and machine_cpu_us (per operation).
#
# Variables: ROUNDS, SECONDS_EACH, and READ_DELAY_MS, which slows the SSD down: the processor is emulated, the disks are not.
# With PROFILE=1 and the file perf.tar (perf, and the libraries that it needs, in lib), it prints instead where the server's
# processor time goes, for hits and write-through writes at depth 16.
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

# part NAME DISK START_MIB SIZE_MIB: /dev/mapper/NAME. Its reads take at least $delay_ms; then io_uring hands each of them to a
# kernel thread, because the target for delays has no nowait requests.
part() {
    local start=$(($3 * mib_sectors)) sectors=$(($4 * mib_sectors))
    if [ "$delay_ms" -eq 0 ]; then
        dmsetup create "$1" --table "0 $sectors linear $2 $start"
    else
        dmsetup create "$1" --table "0 $sectors delay $2 $start $delay_ms $2 $start 0"
    fi
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

flaz create /dev/mapper/ublk-ssd --codec lz4 --origin /dev/mapper/ublk-origin >/dev/null 2>&1
flaz create /dev/mapper/nbd-ssd --codec lz4 --origin /dev/mapper/nbd-origin >/dev/null 2>&1
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

# profile OVER DEVICE SERVER WORKLOAD: one line for each part of the server's processor time of an operation at depth 16.
profile() {
    local load server_before server_us
    server_before=$(server_ticks "$3")
    fio --eta=never --name=hits --filename="$2" --rw="$4" --bs=4k --direct=1 --ioengine=io_uring --iodepth=16 \
        --norandommap --refill_buffers --buffer_compress_percentage=50 --time_based --runtime=16 --output-format=json \
        --output=/tmp/fio.json &
    load=$!
    sleep 3
    LD_LIBRARY_PATH=/tmp/perf/lib /tmp/perf/perf record -q -e cpu-clock -F 400 -g -p "$3" -o /tmp/perf.data -- sleep 10
    wait "$load"
    server_us=$((($(server_ticks "$3") - server_before) * 1000000 / ticks_per_s))
    LD_LIBRARY_PATH=/tmp/perf/lib /tmp/perf/perf script -i /tmp/perf.data -F comm,ip,sym,dso 2>/dev/null |
        python3 -c "$classify" "$1" "$4" "$server_us"
}
# The part of a sample follows from its function in a program, or from the functions on its stack in the kernel.
classify=$(cat <<'PYTHON'
import collections, json, sys
over, workload, server_us = sys.argv[1], sys.argv[2], int(sys.argv[3])
job = json.load(open("/tmp/fio.json"))["jobs"][0]
us = server_us / (job["read"]["total_ios"] + job["write"]["total_ios"])
PROGRAM = [("codec", ["LZ4", "lz4", "ZSTD", "HUF_", "FSE_", "flaz_codec"]), ("checksum", ["crc32c"]),
    ("executor of the runtime", ["flaz_runtime", "futures_", "alloc::task", "core::task"]), ("protocol", ["flaz_ublk", "flaz_nbd"]),
    ("engine: locks, index, log, policy", ["flaz_"]), ("copies and memory", ["memmove", "memset", "memcpy", "malloc", "free", "libc.so"])]
KERNEL = [("ublk", ["ublk_"]), ("socket", ["sock_", "unix_stream", "skb_"]),
    ("device", ["submit_bio", "blk_", "blkdev_", "virtio", "virtqueue", "bio_", "handle_softirqs", "common_interrupt"]),
    ("waits and wake-ups", ["schedule", "io_cqring_wait", "try_to_wake_up"]), ("io_uring", ["io_"])]
parts, samples = collections.Counter(), 0
for sample in sys.stdin.read().split("\n\n"):
    comm, _, stack = sample.strip().partition("\n")
    frames = [line.strip() for line in stack.splitlines()]
    if not frames:
        continue
    samples += 1
    if comm.startswith("iou-"):
        parts["kernel threads of io_uring"] += 1
    elif "kernel" in frames[0] or ".ko" in frames[0] or "([" in frames[0] and "vdso" not in frames[0]:
        on_stack = [frame.split(" ", 1)[-1].lstrip("_") for frame in frames]
        named = (part for part, names in KERNEL if any(name in frame for name in names for frame in on_stack))
        parts[next(named, "rest of the kernel")] += 1
    else:
        # A generic function names several: the first is the one that it belongs to.
        found = [(frames[0].find(name), part) for part, names in PROGRAM for name in names if name in frames[0]]
        parts[min(found, key=lambda at: at[0], default=(0, "rest of the program"))[1]] += 1
print(f"{over} {workload}: {us:.1f} us of an operation, {samples} samples")
for part, count in parts.most_common():
    print(f"{100 * count / samples:5.1f} % {us * count / samples:6.1f} us {part}")
PYTHON
)

if [ "${PROFILE:-0}" = 1 ]; then
    mkdir /tmp/perf
    tar -C /tmp/perf -xf /flaz/perf.tar
    sysctl -qw kernel.kptr_restrict=0
    for workload in randread randwrite; do
        profile ublk /dev/flaz/disk "$ublk_server" "$workload"
        profile nbd /dev/nbd0 "$nbd_server" "$workload"
    done
else
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
fi
detach
flaz stop /dev/mapper/ublk-ssd >/dev/null
flaz stop /dev/mapper/nbd-ssd >/dev/null
wait "$ublk_server" "$nbd_server"
