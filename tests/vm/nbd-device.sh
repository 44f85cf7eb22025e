#!/bin/bash
# flaz as a block device by the kernel's NBD client: a file system stays mounted on it over stops, kills and restarts of the
# daemon, writers check meanwhile that every acknowledged write is read, and nothing is lost. A device that waits keeps others
# from its cache, one in use is not removed, and devices of other programs are left alone.
#
# boot: --timeout 1500 --origin 512M --spare 512M --cache 64M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

kills=${KILLS:-10}
stops=3
device=/dev/flaz/disk
files=/mnt/files
writers=2
writer_blocks=8000

modprobe -a nbd ublk_drv dm-mod
mkdir -p "$files" /etc/udev/rules.d
cp /flaz/60-flaz.rules /etc/udev/rules.d/
udevadm control --reload

serve_disk() { serve --nbd-device=disk --threads 2 --mode "$mode" --block-size 4096; }

gone() { [ ! -e /sys/block/nbd0/pid ] && [ ! -e "$device" ] && ! grep -qsx disk /run/flaz/devices/*; }

stays() {
    [ -b "$device" ] || fail "the name was removed"
    [ -e /sys/block/nbd0/pid ] || fail "the device was removed"
}

for mode in write-through write-back; do
    step "$mode: the device, its limits and its status"
    rm -f /tmp/checks /tmp/ledger*
    flaz create "$CACHE" --force --discard-dirty --origin "$ORIGIN" 2>/dev/null
    serve_disk
    queue=/sys/block/nbd0/queue
    [ "$(blockdev --getsize64 "$device")" = "$(blockdev --getsize64 "$ORIGIN")" ]
    [ "$(cat "$queue/logical_block_size") $(cat "$queue/write_cache") $(cat "$queue/fua")" = "4096 write back 1" ]
    [ "$(cat "$queue/io_timeout")" = 5000 ] || fail "the time limit of requests is $(cat "$queue/io_timeout") ms"
    flaz status -v "$CACHE" | grep -q "Block device *$device" || fail "flaz status does not name the device"
    udevadm settle
    udevadm info --query=symlink /dev/nbd0 | grep -qw flaz/disk || fail "udev does not know the name"

    step "$mode: ext4 and writers over $kills kills and $stops stops"
    parts "$device"
    mkfs.ext4 -q /dev/mapper/files
    mount /dev/mapper/files "$files"
    start_writers /dev/mapper/blocks
    ledger.py files "$files" /tmp/ledger-files "$writers_end" >>/tmp/writes 2>&1 &
    processes+=("$!")
    for kill in $(seq "$kills"); do
        sleep "$((kill % 2)).$((kill % 10))"
        kill_server
        serve_disk
    done
    for _ in $(seq "$stops"); do
        sleep 1
        stop
        stays
        serve_disk
    done
    for process in "${processes[@]}"; do
        kill -0 "$process" || fail "a writer ended: $(cat /tmp/writes)"
    done
    stop_writers
    [ "$failed" -eq 0 ] || fail "$failed requests failed"
    echo 3 >/proc/sys/vm/drop_caches
    ledger.py check-files "$files" /tmp/ledger-files >>/tmp/checks || fail "files after the kills"
    verify_blocks /dev/mapper/blocks
    fstrim "$files"
    umount "$files"
    e2fsck -fn /dev/mapper/files >/tmp/fsck.out 2>&1 || fail "fsck: $(cat /tmp/fsck.out)"
    unparts

    step "$mode: a stop without users removes the device, and writes what its page cache holds"
    head -c 8388608 /dev/urandom >/tmp/late
    dd if=/tmp/late of="$device" bs=1M seek=128 conv=notrunc status=none
    stop
    wait_for 10 gone
    [ "$(cat "$queue/io_timeout")" = 30000 ] || fail "the time limit of requests stays"
    serve_disk
    dd if="$device" of=/tmp/found bs=1M skip=128 count=8 iflag=direct status=none
    cmp /tmp/late /tmp/found || fail "late writes"
    flaz detach "$CACHE" >/dev/null
    wait_for_server
    wait_for 10 gone
    parts "$ORIGIN"
    verify_blocks /dev/mapper/blocks
    unparts
    ! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"
    echo "$mode: $kills kills, $stops stops, $(sum acknowledged /tmp/writes) writes acknowledged," \
        "$(sum checked /tmp/writes) blocks read meanwhile, $(sum checked /tmp/checks) blocks and files read afterwards, 0 lost"
done

step "a device that waits keeps others from the cache"
flaz create "$CACHE" --force --discard-dirty --origin "$ORIGIN" 2>/dev/null
serve_disk
mkfs.ext4 -q "$device"
mount "$device" "$files"
kill_server
refused 'waits for its server' flaz serve "$CACHE" --nbd unix:/tmp/other.sock
refused 'waits for its server' flaz serve "$CACHE" --ublk=disk
refused 'waits for its server' flaz detach "$CACHE"
refused 'is writable, expected read-only' flaz serve "$CACHE" --nbd-device=disk --read-only
refused 'for another origin' flaz serve "$CACHE" --nbd-device --discard-cache --discard-dirty --origin "$SPARE"

step "a device in use is not removed, and its cache not detached"
serve_disk
refused 'is in use (mounted on /mnt/files' flaz detach "$CACHE"
stop
stays
serve_disk
umount "$files"

step "numbers and names: those of others are not taken"
truncate -s 64M /tmp/cache /tmp/origin /tmp/cache1 /tmp/origin1
flaz create /tmp/cache --origin /tmp/origin >/dev/null 2>&1
flaz create /tmp/cache1 --origin /tmp/origin1 >/dev/null 2>&1
refused '/dev/nbd0 is in use' flaz serve /tmp/cache --nbd-device=/dev/nbd0
refused 'is the name of /dev/nbd0' flaz serve /tmp/cache --nbd-device=disk
flaz serve /tmp/cache1 --nbd unix:/tmp/1.sock --control /tmp/1.control >/tmp/1.log 2>&1 &
wait_for 30 answers /tmp/1.sock
nbd-client -unix /tmp/1.sock /dev/nbd1 >/dev/null
flaz serve /tmp/cache --nbd-device=other --read-only --control /tmp/other.control >/tmp/other.log 2>&1 &
other=$!
other_ready() { grep -q "^ready: " /tmp/other.log; }
wait_for 30 other_ready
[ "$(readlink -f /dev/flaz/other)" = /dev/nbd2 ] || fail "other is $(readlink -f /dev/flaz/other), expected /dev/nbd2"
! dd if=/dev/zero of=/dev/flaz/other bs=4k count=1 oflag=direct 2>/dev/null || fail "a write was accepted"
flaz stop --control /tmp/other.control >/dev/null
wait "$other"
[ "$(blockdev --getsize64 /dev/nbd1)" = 67108864 ] || fail "another program's device was taken"
nbd-client -d /dev/nbd1 >/dev/null
flaz stop --control /tmp/1.control >/dev/null

step "a device that is disconnected by hand ends its server"
# Something has it open for a moment, as udev often does.
bash -c "sleep 1" <"$device" &
nbd-client -d "$(readlink -f "$device")" >/dev/null
! wait "$server" || fail "flaz serve continues without its device"
grep -q 'was it disconnected' "$serve_log" || fail "the log does not say why: $(tail -n 5 "$serve_log")"
wait_for 10 gone
serve_disk
stop
wait_for 10 gone
