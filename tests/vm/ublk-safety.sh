#!/bin/bash
# A block device that waits for its server keeps others from its cache; a device in use is not removed; names are unique.
# boot: --origin 256M --spare 256M
# shellcheck source=/dev/null
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files
log=/tmp/serve.log
server=
starts=0

modprobe ublk_drv
mkdir -p "$files" /etc/udev/rules.d
cp /flaz/60-flaz.rules /etc/udev/rules.d/
udevadm control --reload
: >"$log"

# serve OPTION...: starts the daemon with a block device; returns when it is ready.
serve() {
    flaz serve "$CACHE" --mode write-back "$@" >>"$log" 2>&1 &
    server=$!
    starts=$((starts + 1))
    started() { [ "$(grep -c '^ready: /dev/flaz/' "$log")" -ge "$starts" ] || ! kill -0 "$server"; }
    wait_for 60 started
    kill -0 "$server" || fail "flaz serve: $(tail -n 5 "$log")"
}

stop() {
    flaz stop "$CACHE" >/dev/null
    wait "$server" || fail "flaz serve ended with status $?: $(tail -n 5 "$log")"
}

kill_server() {
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
}

# refused TEXT COMMAND...: the command fails, and says TEXT.
refused() {
    local text=$1
    shift
    ! "$@" >/tmp/refused.log 2>&1 || fail "not refused: $*"
    grep -q -e "$text" /tmp/refused.log || fail "expected '$text' from '$*', got: $(cat /tmp/refused.log)"
}

gone() { ! compgen -G '/dev/ublkb*' >/dev/null && [ ! -e "$device" ] && [ ! -e /run/flaz/devices/ublkb0 ]; }

stays() { [ -b "$device" ] || fail "the device was removed although it is in use"; }

flaz create "$CACHE" --origin "$ORIGIN" 2>/dev/null

step "a device that waits keeps others from the cache"
serve --ublk=disk
mkfs.ext4 -q "$device"
mount "$device" "$files"
head -c 20000000 /dev/urandom >"$files/data"
sync
sum=$(sha256sum <"$files/data")
kill_server
refused 'waits for its server' flaz serve "$CACHE" --nbd unix:/tmp/other.sock
refused 'waits for its server' flaz flush "$CACHE"
refused 'waits for its server' flaz detach "$CACHE"
refused 'is writable, expected read-only' flaz serve "$CACHE" --ublk=disk --read-only
refused 'would lose dirty data' flaz serve "$CACHE" --ublk=disk --discard-cache --discard-dirty
refused 'for another origin' flaz serve "$CACHE" --ublk=disk --discard-cache --discard-dirty --origin "$SPARE"
serve --ublk=disk --ublk-depth 7
grep -q 'keeps its own --ublk-depth (it has 64)' "$log" || fail "no warning of an option that is not followed"
echo 3 >/proc/sys/vm/drop_caches
[ "$(sha256sum <"$files/data")" = "$sum" ] || fail "the file has other contents"

step "a device in use is not removed, and its cache not detached"
refused 'is in use (mounted on /mnt/files' flaz detach "$CACHE"
stop
stays
serve --ublk=disk
umount "$files"
(exec sleep 1000 9<"$device") &
holder=$!
refused "process $holder has it open" flaz detach "$CACHE"
stop
stays
serve --ublk=disk
kill "$holder"
wait "$holder" || true

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
serve --ublk=disk
umount "$files"

step "a name has one device, and a device one name"
truncate -s 64M /tmp/cache /tmp/origin
flaz create /tmp/cache --origin /tmp/origin >/dev/null 2>&1
refused 'is the name of /dev/ublkb0' flaz serve /tmp/cache --ublk=disk
kill_server
serve --ublk=other
[ -b /dev/flaz/other ] || fail "no link of the new name"
[ ! -e "$device" ] || fail "the earlier name is still there"
flaz status "$CACHE" | grep -q '/dev/flaz/other' || fail "flaz status does not name the device"

step "a read-only device beside it"
flaz serve /tmp/cache --ublk=fixed --read-only --control /tmp/fixed.control >/tmp/fixed.log 2>&1 &
fixed=$!
ready() { grep -q '^ready: ' /tmp/fixed.log; }
wait_for 30 ready
[ "$(blockdev --getro /dev/flaz/fixed)" = 1 ] || fail "the device is writable"
! dd if=/dev/zero of=/dev/flaz/fixed bs=4k count=1 oflag=direct 2>/dev/null || fail "a write was accepted"
cmp -n 67108864 /dev/flaz/fixed /dev/zero
flaz stop --control /tmp/fixed.control >/dev/null
wait "$fixed"

step "detach removes the device, even with --keep-device"
stop
wait_for 10 gone
serve --ublk=disk --keep-device
stop
stays
serve --ublk=disk --keep-device
flaz detach "$CACHE" >/dev/null
wait "$server" || fail "flaz serve ended with status $?: $(tail -n 5 "$log")"
wait_for 10 gone
! grep -E 'panicked|checksum' "$log" || fail "the log of the daemon"
