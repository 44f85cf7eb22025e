#!/bin/bash
# Names of block devices: a name has one device, also if two servers start at once, and a device that was deleted by hand loses
# its name.
# boot: --timeout 1200 --origin 256M --spare 256M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files

modprobe -a nbd ublk_drv dm-mod
mkdir -p "$files" /mnt/root /etc/udev/rules.d
cp /flaz/60-flaz.rules /etc/udev/rules.d/
udevadm control --reload

gone() { [ ! -e "$device" ] && ! grep -qsx disk /run/flaz/devices/*; }

# make NAME SIZE [DIRECTORY]: a cache DIRECTORY/NAME-cache of DIRECTORY/NAME-origin.
make() {
    local directory=${3:-/tmp}
    truncate -s "$2" "$directory/$1-origin"
    flaz create "$directory/$1-cache" --size 64M --origin "$directory/$1-origin" >/dev/null 2>&1
}

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
done

step "a device that was deleted by hand loses its name, and the next one with its number does not get it"
flaz create "$CACHE" --force --origin "$ORIGIN" 2>/dev/null
served=/tmp/a-cache serve --nbd-device=disk
kill_server
nbd-client -d "$(readlink -f "$device")" >/dev/null
flaz serve /tmp/b-cache --nbd unix:/tmp/b.sock --control /tmp/b.control >/tmp/b.log 2>&1 &
wait_for 30 answers /tmp/b.sock
udevadm settle
attach /tmp/b.sock
udevadm settle
! udevadm info --query=symlink /dev/nbd0 | grep -qw flaz/disk || fail "udev gives the name to another program's device"
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
! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"
