#!/bin/bash
# A block device that waits for its server keeps others from its cache; a device in use is not removed; names are unique.
# boot: --origin 256M --spare 256M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files

modprobe ublk_drv
mkdir -p "$files" /etc/udev/rules.d
cp /flaz/60-flaz.rules /etc/udev/rules.d/
udevadm control --reload

gone() { ! compgen -G '/dev/ublkb*' >/dev/null && [ ! -e "$device" ] && ! grep -qsx disk /run/flaz/devices/*; }

stays() { [ -b "$device" ] || fail "the device was removed although it is in use"; }

flaz create "$CACHE" --origin "$ORIGIN" 2>/dev/null

step "a device that waits keeps others from the cache"
serve --mode write-back --ublk=disk
mkfs.ext4 -q "$device"
mount "$device" "$files"
head -c 20000000 /dev/urandom >"$files/data"
sync
sum=$(sha256sum <"$files/data")
for operation in read write flush; do
    flaz status "$CACHE" --json | python3 -c "
import json, sys
counts = {one['operation']: one['count'] for one in json.load(sys.stdin)['live']['operations']}
sys.exit(counts['$operation'] == 0)" || fail "$operation requests of the device are not counted"
done
kill_server
refused 'waits for its server' flaz serve "$CACHE" --nbd unix:/tmp/other.sock
refused 'waits for its server' flaz flush "$CACHE"
refused 'waits for its server' flaz detach "$CACHE"
refused 'waits for its server' flaz create "$CACHE" --force --discard-dirty --origin "$ORIGIN"
refused 'is writable, expected read-only' flaz serve "$CACHE" --ublk=disk --read-only
refused 'would lose dirty data' flaz serve "$CACHE" --ublk=disk --discard-cache --discard-dirty
refused 'for another origin' flaz serve "$CACHE" --ublk=disk --discard-cache --discard-dirty --origin "$SPARE"
serve --mode write-back --ublk=disk --ublk-depth 7
grep -q 'keeps its own --ublk-depth (it has 64)' "$serve_log" || fail "no warning of an option that is not followed"
echo 3 >/proc/sys/vm/drop_caches
[ "$(sha256sum <"$files/data")" = "$sum" ] || fail "the file has other contents"

step "a device in use is not removed, and its cache not detached"
refused 'is in use (mounted on /mnt/files' flaz detach "$CACHE"
stop
stays
serve --mode write-back --ublk=disk
umount "$files"
(exec sleep 1000 9<"$device") &
holder=$!
refused "process $holder has it open" flaz detach "$CACHE"
stop
stays
serve --mode write-back --ublk=disk
kill "$holder"
wait "$holder" || true

modprobe loop
loop=$(losetup --find --show "$device")
refused "${loop#/dev/}" flaz detach "$CACHE"
stop
stays
serve --mode write-back --ublk=disk
losetup -d "$loop"

step "partitions: in use, and named by udev"
sectors=$(blockdev --getsz "$device")
addpart "$device" 1 2048 $((sectors - 2048))
udevadm settle
[ -b /dev/flaz/disk-part1 ] || fail "no name for the partition: $(ls -l /dev/flaz)"
udevadm info --query=symlink "$(readlink -f "$device")" | grep -qw flaz/disk || fail "udev does not know the name"
mkfs.ext4 -q /dev/flaz/disk-part1
mount /dev/flaz/disk-part1 "$files"
refused 'mounted on /mnt/files' flaz detach "$CACHE"
stop
stays
serve --mode write-back --ublk=disk
umount "$files"

step "what a writer has left in the page cache is there after a stop"
head -c 67108864 /dev/urandom >/tmp/late
file=$(readlink -f "$device")
dd if=/tmp/late of="$device" bs=1M conv=notrunc status=none &
writer=$!
# While it closes the device, no process has it open, and the kernel still writes.
until [ "$(readlink "/proc/$writer/fd/1")" = "$file" ] || ! kill -0 "$writer"; do :; done
while [ "$(readlink "/proc/$writer/fd/1")" = "$file" ]; do :; done
stop
wait "$writer" || fail "the writer failed"
wait_for 10 gone
serve --mode write-back --ublk=disk
cmp -n 67108864 /tmp/late "$device" || fail "data of a writer that has ended without an error"

step "a name has one device, and a device one name"
truncate -s 64M /tmp/cache /tmp/origin
flaz create /tmp/cache --origin /tmp/origin >/dev/null 2>&1
refused 'is the name of /dev/ublkb0' flaz serve /tmp/cache --ublk=disk
kill_server
serve --mode write-back --ublk=other
[ -b /dev/flaz/other ] || fail "no link of the new name"
[ ! -e "$device" ] || fail "the earlier name is still there"
flaz status -v "$CACHE" | grep -q '/dev/flaz/other' || fail "flaz status does not name the device"

step "a read-only device beside it"
flaz serve /tmp/cache --ublk=fixed --read-only --control /tmp/fixed.control >/tmp/fixed.log 2>&1 &
fixed=$!
fixed_ready() { grep -q "^ready: " /tmp/fixed.log; }
wait_for 30 fixed_ready
[ "$(blockdev --getro /dev/flaz/fixed)" = 1 ] || fail "the device is writable"
! dd if=/dev/zero of=/dev/flaz/fixed bs=4k count=1 oflag=direct 2>/dev/null || fail "a write was accepted"
cmp -n 67108864 /dev/flaz/fixed /dev/zero
flaz stop --control /tmp/fixed.control >/dev/null
wait "$fixed"

step "without permission to lock memory it warns and serves"
stop
wait_for 10 gone
unlocked=(setpriv --inh-caps=-ipc_lock --bounding-set=-ipc_lock prlimit --memlock=65536)
"${unlocked[@]}" flaz serve "$CACHE" --ublk=disk >/tmp/unlocked.log 2>&1 &
server=$!
unlocked_ready() { grep -q "^ready: " /tmp/unlocked.log || ! kill -0 "$server"; }
wait_for 30 unlocked_ready
grep -q 'cannot lock the memory' /tmp/unlocked.log || fail "no warning: $(cat /tmp/unlocked.log)"
dd if=/dev/urandom of="$device" bs=1M count=100 oflag=direct 2>/dev/null
kill -0 "$server" || fail "flaz serve ended: $(tail -n 5 /tmp/unlocked.log)"
serve_log=/tmp/unlocked.log stop

step "detach removes the device, even with --keep-device"
serve --mode write-back --ublk=disk --keep-device
stop
stays
serve --mode write-back --ublk=disk --keep-device
flaz detach "$CACHE" >/dev/null
wait_for_server
wait_for 10 gone
! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"
