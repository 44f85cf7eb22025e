#!/bin/bash
# Names of block devices, and devices without a server: a name has one device, also if two servers start at once; a device that
# was deleted by hand loses its name; a state directory, cache or origin that a file system on the device itself hides is named
# at the next start instead of waited for; other users are kept from the cache; `flaz remove-device` ends the waiting.
# boot: --timeout 1200 --origin 256M --spare 256M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files
limit_s=30

modprobe -a nbd ublk_drv dm-mod
mkdir -p "$files" /mnt/root /etc/udev/rules.d
cp /flaz/60-flaz.rules /etc/udev/rules.d/
udevadm control --reload

gone() { [ ! -e "$device" ] && ! grep -qsx disk /run/flaz/devices/*; }

# refused_soon TEXT COMMAND...: like refused, and the command does not wait for the device.
refused_soon() {
    local text=$1
    shift
    refused "$text" timeout --kill-after 1 "$limit_s" "$@"
}

# make NAME SIZE [DIRECTORY]: a cache DIRECTORY/NAME-cache of DIRECTORY/NAME-origin.
make() {
    local directory=${3:-/tmp}
    truncate -s "$2" "$directory/$1-origin"
    flaz create "$directory/$1-cache" --size 64M --origin "$directory/$1-origin" >/dev/null 2>&1
}

nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups env FLAZ_RUNTIME_DIR=/tmp/nobody/run STATE_DIRECTORY=/tmp/nobody/state)

for driver in --ublk --nbd-device; do
    step "$driver: two servers that start at once do not get one name"
    names=()
    for one in a b; do
        rm -f "/tmp/$one-cache"
        make "$one" 64M
        flaz serve "/tmp/$one-cache" "$driver=same" >"/tmp/$one.log" 2>&1 &
        names+=("$!")
    done
    decided() { [ "$(grep -l -e '^ready: ' -e 'same is ' /tmp/[ab].log | wc -l)" = 2 ]; }
    wait_for 60 decided
    [ "$(cat /tmp/[ab].log | grep -c '^ready: ')" = 1 ] || fail "the logs: $(cat /tmp/[ab].log)"
    kill "${names[@]}" 2>/dev/null || true
    wait "${names[@]}" || true
    [ ! -e /dev/flaz/same ] || fail "the name is still there"

    step "$driver: a state directory that is hidden by a file system on the device"
    flaz create "$CACHE" --force --discard-dirty --origin "$ORIGIN" 2>/dev/null
    serve "$driver=disk" --state-dir "$files/state"
    dmsetup create part --table "0 $((128 * 2048)) linear $(readlink -f "$device") 0"
    mkfs.ext4 -q /dev/mapper/part
    mount /dev/mapper/part "$files"
    mkdir "$files/state"
    sync
    timeout --kill-after 1 "$limit_s" flaz stop --force "$CACHE" >/dev/null || fail "flaz stop waits for its own device"
    wait_for_server
    echo 3 >/proc/sys/vm/drop_caches
    refused_soon "$files/state is on /dev/flaz/disk (mounted on $files), which waits" \
        flaz serve "$CACHE" "$driver=disk" --state-dir "$files/state"
    ln -s files/state /mnt/link
    refused_soon "/mnt/link is on /dev/flaz/disk" flaz serve "$CACHE" "$driver=disk" --state-dir /mnt/link
    rm /mnt/link
    serve "$driver=disk"
    ls "$files/state" >/dev/null

    step "$driver: a device that waits is not removed while it has a server, and only with --force while it is in use"
    refused 'it has a server' flaz remove-device disk --force
    kill_server
    dd if="$device" of=/dev/null bs=4k count=1 skip=9999 iflag=direct status=none 2>/dev/null &
    reader=$!
    refused_soon "is in use (.*mounted on $files" flaz remove-device disk
    [ -b "$device" ] || fail "the device was removed although it is in use"
    kill -0 "$reader" || fail "a request does not wait"
    flaz remove-device "$device" --force >/tmp/removed.log 2>&1 || fail "remove-device: $(cat /tmp/removed.log)"
    grep -q 'removed /dev/flaz/disk, which was /dev/.* with 256' /tmp/removed.log || fail "it says $(cat /tmp/removed.log)"
    ! wait "$reader" || fail "a request that waited has succeeded"
    umount "$files"
    dmsetup remove --retry part
    wait_for 10 gone
    serve "$driver=disk"
    udevadm settle
    kill_server
    flaz remove-device disk >/dev/null
    wait_for 10 gone
    refused 'no such block device' flaz remove-device disk

    step "$driver: a cache and an origin that are hidden by a file system on the device"
    rm -f "$files"/x-*
    make x 64M "$files"
    mount --bind / /mnt/root
    served=$files/x-cache serve "$driver=disk"
    mkfs.ext4 -q "$device"
    mount "$device" "$files"
    kill_server
    echo 3 >/proc/sys/vm/drop_caches
    refused_soon "the cache $files/x-cache is on /dev/flaz/disk" flaz serve "$files/x-cache" "$driver=disk"
    refused_soon "the cache $files/x-cache is on /dev/flaz/disk" flaz status "$files/x-cache"
    refused_soon "the origin $files/x-origin is on /dev/flaz/disk" flaz serve "/mnt/root$files/x-cache" "$driver=disk"
    served=/mnt/root$files/x-cache serve "$driver=disk" --origin "/mnt/root$files/x-origin"
    umount "$files"
    served=/mnt/root$files/x-cache stop
    umount /mnt/root
    wait_for 10 gone
done

step "a device that was deleted by hand loses its name, and the next one with its number does not get it"
flaz create "$CACHE" --force --discard-dirty --origin "$ORIGIN" 2>/dev/null
served=/tmp/a-cache serve --nbd-device=disk
kill_server
nbd-client -d "$(readlink -f "$device")" >/dev/null
flaz serve /tmp/b-cache --nbd unix:/tmp/b.sock --control /tmp/b.control >/tmp/b.log 2>&1 &
wait_for 30 answers /tmp/b.sock
udevadm settle
attach /tmp/b.sock
udevadm settle
! udevadm info --query=symlink /dev/nbd0 | grep -qw flaz/disk || fail "udev gives the name to another program's device"
# As without udev, which has removed the link.
mkdir -p /dev/flaz
ln -sfn /dev/nbd0 "$device"
refused 'did not create under this name' flaz remove-device disk
served=$CACHE serve --nbd-device=disk
[ "$(readlink -f "$device")" = /dev/nbd1 ] || fail "the name is that of $(readlink -f "$device")"
served=$CACHE stop
nbd-client -d /dev/nbd0 >/dev/null
flaz stop --control /tmp/b.control >/dev/null

step "the note of a ublk device is that of its disk"
serve --ublk=disk
grep -qx disk "/run/flaz/devices/ublk-$(cat /sys/block/ublkb0/diskseq)" || fail "notes: $(grep . /run/flaz/devices/*)"
udevadm settle
udevadm info --query=symlink /dev/ublkb0 | grep -qw flaz/disk || fail "udev does not know the name"
stop
wait_for 10 gone

step "users who cannot read whose device waits are kept from caches of its size only"
mkdir /tmp/nobody
make same 64M /tmp/nobody
make other 65M /tmp/nobody
chown -R 65534:65534 /tmp/nobody
served=/tmp/nobody/same-cache serve --ublk=disk --state-dir /tmp/state
udevadm settle
kill_server
for command in flush serve; do
    refused '/dev/ublkb0 has the size of the origin' "${nobody[@]}" flaz "$command" /tmp/nobody/same-cache
done
"${nobody[@]}" flaz serve /tmp/nobody/other-cache --nbd unix:/tmp/nobody/other.sock >/tmp/other.log 2>&1 &
other=$!
wait_for 30 answers /tmp/nobody/other.sock
kill "$other"
wait "$other"
flaz remove-device disk >/dev/null
! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"
