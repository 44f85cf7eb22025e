#!/bin/bash
# Disks of a block device fail under load, and come back: the SSD with errors, the origin with errors, the origin without
# answers, and at last the SSD is unplugged. Writers check that they read what was acknowledged, or an error where errors are
# promised, and after a restart everything is read again.
#
# boot: --timeout 1800 --origin 256M --cache 96M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
served=/dev/mapper/ssd
slow_disk=/dev/mapper/origin

modprobe -a ublk_drv dm-mod

linear() { echo "0 $(blockdev --getsz "$1") linear $1 0"; }
broken() { echo "0 $(blockdev --getsz "$1") error"; }
# table NAME TABLE: requests in flight end first, the next ones go to the new table.
table() {
    dmsetup suspend --nolockfs "$1"
    echo "$2" | dmsetup load "$1"
    dmsetup resume "$1"
}
dmsetup create ssd --table "$(linear "$CACHE")"
dmsetup create origin --table "$(linear "$ORIGIN")"

serve_disk() { serve --ublk=disk --threads 2 --mode "$1" --block-size 4096 --device-timeout 5 --dirty-limit 50; }

# cold_origin: the blocks that were never written are zeroes.
cold_origin() {
    rm -f /tmp/ledger*
    dd if=/dev/zero of="$ORIGIN" bs=1M oflag=direct status=none 2>/dev/null || true
    flaz create "$served" --force --discard-dirty --origin "$slow_disk" >/dev/null 2>&1
}
restart() {
    stop
    serve_disk "$1"
}
# after_failure MODE: the stop says that the cache device has failed.
after_failure() {
    ! flaz stop --force "$served" >/dev/null 2>/tmp/stop.out || fail "the stop says nothing about the SSD"
    grep -q 'cache device failed' /tmp/stop.out || fail "the stop: $(cat /tmp/stop.out)"
    ! wait "$server" || fail "the exit status of the daemon is 0"
    serve_disk "$1"
}
status_says() { flaz status -v "$served" | grep -qi "$1" || fail "flaz status does not say '$1': $(flaz status -v "$served")"; }

step "write-through: the SSD fails"
cold_origin
serve_disk write-through
start_writers "$device"
sleep 4
table ssd "$(broken "$CACHE")"
sleep 6
status_says bypass
stop_writers
[ "$failed" -eq 0 ] || fail "$failed requests failed because of the SSD"
verify_blocks "$device"
table ssd "$(linear "$CACHE")"
after_failure write-through
! started_warm "$served" || fail "a start after a bypass was warm"
verify_blocks "$device"

step "write-back: the SSD fails"
stop
cold_origin
serve_disk write-back
start_writers "$device"
sleep 4
table ssd "$(broken "$CACHE")"
sleep 6
stop_writers
table ssd "$(linear "$CACHE")"
after_failure write-back
verify_blocks "$device"
flaz flush "$served" >/dev/null
verify_blocks "$ORIGIN"

for mode in write-through write-back; do
    step "$mode: the origin fails"
    stop
    cold_origin
    serve_disk "$mode"
    start_writers "$device"
    sleep 4
    table origin "$(broken "$ORIGIN")"
    sleep 6
    table origin "$(linear "$ORIGIN")"
    sleep 3
    stop_writers
    # In write-back, the cache takes the writes.
    [ "$mode" = write-back ] || [ "$failed" -gt 0 ] || fail "no request failed without the origin"
    verify_blocks "$device"

    step "$mode: the origin does not answer for a while"
    start_writers "$device"
    sleep 2
    dmsetup suspend --nolockfs origin
    sleep 8
    dmsetup resume origin
    sleep 3
    stop_writers
    [ "$failed" -eq 0 ] || fail "$failed requests failed because of a slow origin"
    verify_blocks "$device"
    restart "$mode"
    verify_blocks "$device"
    flaz flush "$served" >/dev/null
    verify_blocks "$ORIGIN"
done

step "write-through: the SSD is unplugged"
stop
udevadm settle
dmsetup remove --retry ssd
served=$CACHE
cold_origin
serve_disk write-through
start_writers "$device"
sleep 4
echo 1 >"/sys/block/$(basename "$CACHE")/device/../remove"
sleep 6
stop_writers
[ "$failed" -eq 0 ] || fail "$failed requests failed because of the SSD"
verify_blocks "$device"
kill -TERM "$server"
wait "$server" || true
[ ! -e "$device" ] || fail "the device is still there"
verify_blocks "$ORIGIN"
step "done"
