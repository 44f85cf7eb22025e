#!/bin/bash
# An origin over NVMe/TCP, whose network is cut and restored under load. As the machine has one network, target and host share
# its loopback interface. With a host that waits for the target, requests wait and none fails; with a host that gives up after
# some seconds, misses fail, cached blocks are read, and a write-back cache takes writes.
#
# boot: --timeout 1200 --origin 256M --cache 96M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
remote=/dev/nvme0n1
# Blocks that are cached before a cut; nothing writes to them.
cached_offset_mib=200
cached_kib=1024

modprobe -a ublk_drv nvmet nvmet-tcp nvme-tcp
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config

step "the target"
target=/sys/kernel/config/nvmet
mkdir "$target/subsystems/flaz"
echo 1 >"$target/subsystems/flaz/attr_allow_any_host"
echo flaz-origin >"$target/subsystems/flaz/attr_serial"
mkdir "$target/subsystems/flaz/namespaces/1"
echo -n "$ORIGIN" >"$target/subsystems/flaz/namespaces/1/device_path"
echo 1 >"$target/subsystems/flaz/namespaces/1/enable"
mkdir "$target/ports/1"
echo tcp >"$target/ports/1/addr_trtype"
echo ipv4 >"$target/ports/1/addr_adrfam"
echo 127.0.0.1 >"$target/ports/1/addr_traddr"
echo 4420 >"$target/ports/1/addr_trsvcid"
ln -s "$target/subsystems/flaz" "$target/ports/1/subsystems/flaz"

# connect OPTION...: makes the disk of the target.
connect() {
    nvme connect --transport tcp --traddr 127.0.0.1 --trsvcid 4420 --nqn flaz --keep-alive-tmo 3 --reconnect-delay 1 \
        "$@" >/dev/null
    wait_for 30 test -b "$remote"
    udevadm settle
}
disconnect() {
    udevadm settle
    nvme disconnect --nqn flaz >/dev/null
}
cut() { ip link set lo down; }
restore() { ip link set lo up; }

serve_disk() { serve --ublk=disk --threads 2 --mode "$1" --block-size 4096; }

# write_during_cut SECONDS: the network is cut for SECONDS under load.
write_during_cut() {
    start_writers "$device"
    sleep 3
    cut
    sleep "$1"
    restore
    sleep 8
    stop_writers
}

for mode in write-through write-back; do
    step "$mode: requests wait for a network that is cut for 10 s"
    rm -f /tmp/ledger*
    dd if=/dev/zero of="$ORIGIN" bs=1M oflag=direct status=none 2>/dev/null || true
    connect --ctrl-loss-tmo 600
    flaz create "$CACHE" --force --discard-dirty --origin "$remote" >/dev/null 2>&1
    serve_disk "$mode"
    write_during_cut 10
    [ "$failed" -eq 0 ] || fail "$failed requests failed"
    verify_blocks "$device"
    stop
    disconnect

    step "$mode: the host gives up after 3 s"
    connect --ctrl-loss-tmo 600
    echo 3 >/sys/class/nvme/nvme0/fast_io_fail_tmo
    serve_disk "$mode"
    started_warm "$served" || fail "the start was cold"
    # Twice, at random: blocks that are read in order are not cached.
    fio --name=warm --filename="$device" --direct=1 --rw=randread --bs=4k --offset="${cached_offset_mib}M" \
        --size="${cached_kib}k" --loops=2 --output=/dev/null
    cached() {
        dd if="$device" bs=4k skip=$((cached_offset_mib * 256)) count=$((cached_kib / 4)) iflag=direct status=none | sha256sum
    }
    before=$(cached)
    start_writers "$device"
    sleep 3
    cut
    sleep 12
    [ "$(cached)" = "$before" ] || fail "cached blocks were not read"
    ! dd if="$device" of=/dev/null bs=4k skip=$((230 * 256)) count=1 iflag=direct 2>/tmp/miss.out ||
        fail "a miss was read without the origin"
    grep -q 'Input/output error' /tmp/miss.out || fail "a miss: $(cat /tmp/miss.out)"
    restore
    wait_for 60 dd if="$device" of=/dev/null bs=4k skip=$((231 * 256)) count=1 iflag=direct
    stop_writers
    [ "$mode" = write-back ] || [ "$failed" -gt 0 ] || fail "no write failed without the network"
    verify_blocks "$device"
    flaz flush "$served" >/dev/null
    # A flush of the origin that failed while no client flushed is reported to the next one. That of the stop would keep the
    # device.
    sync "$device" 2>/dev/null || true
    stop
    wait_for 10 test ! -e "$device"
    verify_blocks "$remote"
    disconnect
done
