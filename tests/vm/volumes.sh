#!/bin/bash
# Two file systems on block devices of two volumes that share an SSD, under writers: one server is killed, a volume is added and
# removed beside them, the SSD grows and shrinks, space is limited, one origin fails, and the device that has no server is not overwritten.
# All that was acknowledged is there afterwards, through the cache and on the origins alone.
#
# boot: --timeout 1800 --origin 768M --cache 256M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

modprobe -a ublk_drv nbd loop dm-mod xfs
ssd=/dev/mapper/ssd
declare -A servers option=([home]=ublk [db]=nbd-device) mode=([home]=write-back [db]=write-through) writer
sectors=$(blockdev --getsz "$CACHE")
linear() { echo "0 $(($2)) linear $1 ${3:-0}"; }
# table NAME TABLE: requests in flight end first, the next ones go to the new table.
table() {
    dmsetup suspend --nolockfs "$1"
    echo "$2" | dmsetup load "$1"
    dmsetup resume "$1"
}
half=$(($(blockdev --getsz "$ORIGIN") / 2))
dmsetup create ssd --table "$(linear "$CACHE" sectors/2)"
dmsetup create home --table "$(linear "$ORIGIN" half)"
dmsetup create db --table "$(linear "$ORIGIN" half "$half")"

# serve_volume NAME [OPTION...]
serve_volume() {
    local name=$1
    shift
    : >"/tmp/$name.log"
    flaz serve "$ssd:$name" "--${option[$name]}=$name" --mode "${mode[$name]}" --threads 1 "$@" >"/tmp/$name.log" 2>&1 &
    servers[$name]=$!
    ready() { grep -q '^ready: ' "/tmp/$name.log" || ! kill -0 "${servers[$name]}"; }
    wait_for 60 ready
    kill -0 "${servers[$name]}" || fail "$name: $(cat "/tmp/$name.log")"
}
stop_volume() {
    flaz stop --force "$ssd:$1" >/dev/null
    wait "${servers[$1]}" || fail "$1 ended with status $?: $(cat "/tmp/$1.log")"
}
kill_volume() {
    kill -KILL "${servers[$1]}"
    wait "${servers[$1]}" 2>/dev/null || true
}
start_writer() {
    rm -f "/tmp/end-$1"
    ledger.py files "/mnt/$1" "/tmp/ledger-$1" "/tmp/end-$1" >>"/tmp/writes-$1" 2>&1 &
    writer[$1]=$!
}
stop_writer() {
    touch "/tmp/end-$1"
    wait "${writer[$1]}" || fail "the writer of $1: $(cat "/tmp/writes-$1")"
    [ "$(sum failed "/tmp/writes-$1")" -eq 0 ] || fail "requests to $1 failed: $(cat "/tmp/writes-$1")"
}
check_files() {
    echo 3 >/proc/sys/vm/drop_caches
    ledger.py check-files "/mnt/$1" "/tmp/ledger-$1" >>/tmp/checks || fail "files of $1"
}
space() { flaz volume list "$ssd" --json | python3 -c "import json, sys
print(sum(v['held_bytes'] for v in json.load(sys.stdin)['volumes'] if v['name'] == '$1') >> 20)"; }

step "two volumes, ext4 by ublk and xfs by NBD, under writers"
flaz create "$ssd" --shared --region-size 256K >/dev/null
for name in home db; do
    flaz volume add "$ssd" "$name" --origin "/dev/mapper/$name" --at-least 8M >/dev/null
    serve_volume "$name"
    mkdir -p "/mnt/$name"
done
mkfs.ext4 -q /dev/flaz/home
mkfs.xfs -q /dev/flaz/db
for name in home db; do
    mount "/dev/flaz/$name" "/mnt/$name"
    start_writer "$name"
done
sleep 5

step "the device is in use, whichever volume is served"
refused 'in use\|apparently in use\|contains a mounted\|Device or resource busy\|will not make' mkfs.ext4 -q "$ssd"
refused 'locked by another process\|claimed' flaz create "$ssd" --shared --force --discard-dirty

step "a server is killed, and taken over; the other one goes on"
for _ in 1 2 3; do
    kill_volume home
    sleep 0.5
    serve_volume home
    sleep 1
done
# Whoever had the device exclusively is gone; the other one takes that over.
sleep 12
refused 'in use\|Device or resource busy\|contains a mounted\|will not make' mkfs.ext4 -q "$ssd"

step "a third volume comes, and goes"
truncate -s 64M /tmp/third
third=$(losetup --show -f /tmp/third)
flaz volume add "$ssd" third --origin "$third" >/dev/null
option[third]=ublk mode[third]=write-back
serve_volume third
dd if=/dev/urandom of=/dev/flaz/third bs=1M count=32 oflag=direct conv=fsync status=none
before=$(sha256sum </dev/flaz/third)
refused 'volume third of .* is in use' flaz volume remove "$ssd" third
stop_volume third
flaz flush "$ssd:third" >/dev/null
flaz volume remove "$ssd" third >/dev/null
[ "$(sha256sum <"$third")" = "$before" ] || fail "the third volume's origin"
losetup -d "$third"

step "the SSD becomes larger"
table ssd "$(linear "$CACHE" sectors)"
flaz resize "$ssd" >/tmp/resized
grep -q '^resized: ' /tmp/resized || fail "$(cat /tmp/resized)"
sleep 12

step "the SSD becomes smaller, and larger again"
# Ext4 and xfs have filled more than fits.
before=$(($(space home) + $(space db)))
size=$((sectors * 512 / 2))
flaz resize "$ssd" --size "$size" >/tmp/resized
grep -q '^resized: ' /tmp/resized || fail "$(cat /tmp/resized)"
[ $(($(space home) + $(space db))) -le $((size >> 20)) ] || fail "$before MiB before, now $(flaz volume list "$ssd")"
# Nothing lies beyond the new end.
table ssd "$(linear "$CACHE" sectors/2)"
sleep 3
kill_volume home
sleep 0.5
serve_volume home
sleep 3
refused 'expected at least' flaz resize "$ssd" --size 1M
# Killed in the middle: a volume that is served calls it off.
flaz resize "$ssd" --size $((size / 2)) >/dev/null 2>&1 &
resizing=$!
sleep 0.5
kill -KILL "$resizing" 2>/dev/null || true
wait "$resizing" 2>/dev/null || true
called_off() { [ "$(flaz volume list "$ssd" --json | python3 -c 'import json, sys
print("shrink" in json.load(sys.stdin)["cache"])')" = False ]; }
wait_for 60 called_off
table ssd "$(linear "$CACHE" sectors)"
flaz resize "$ssd" >/tmp/resized
sleep 12

step "a volume is limited"
flaz volume set "$ssd" home --at-most 24M >/dev/null
limited() { [ "$(space home)" -le 24 ]; }
wait_for 120 limited
flaz volume set "$ssd" home --at-most 0 >/dev/null
stop_writer home
stop_writer db
check_files home
check_files db

step "one origin fails; the other volume goes on"
umount /mnt/db
start_writer home
table db "0 $half error"
! dd if=/dev/flaz/db of=/dev/null bs=1M skip=$((half / 2048 - 40)) count=32 iflag=direct status=none 2>/dev/null || fail "no error"
sleep 3
stop_writer home
check_files home
table db "$(linear "$ORIGIN" half "$half")"
mount /dev/flaz/db /mnt/db
check_files db

step "stopped, warm, and the origins alone"
for name in home db; do
    umount "/mnt/$name"
    stop_volume "$name"
    flaz check "$ssd:$name" >/dev/null || fail "check of $name"
    serve_volume "$name"
    started_warm "$ssd:$name" || fail "$name is cold"
    flaz detach "$ssd:$name" >/dev/null
    wait "${servers[$name]}" || fail "$name: $(cat "/tmp/$name.log")"
    mount -o ro "/dev/mapper/$name" "/mnt/$name"
    check_files "$name"
    umount "/mnt/$name"
    flaz volume remove "$ssd" "$name" >/dev/null
done
flaz volume list "$ssd" | grep -q 'no volumes' || fail "$(flaz volume list "$ssd")"
echo "$(sum acknowledged /tmp/writes-home) and $(sum acknowledged /tmp/writes-db) writes, $(sum checked /tmp/checks) checked"
