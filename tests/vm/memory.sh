#!/bin/bash
# Memory pressure: swap space and a file system are on the block device, so the kernel frees memory only through the daemon.
# boot: --memory 768M --timeout 600
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files
swap_mib=500
hog_mib=560
seconds=75

modprobe ublk_drv
mkdir -p "$files"
flaz create "$CACHE" --origin "$ORIGIN" 2>/dev/null

# A program that fills memory, changes it and reads it back, for some time: its pages go to swap space.
cat >/tmp/hog.py <<'PYTHON'
import os, sys, time
mib, end = int(sys.argv[1]), time.monotonic() + int(sys.argv[2])
half = os.urandom(1 << 19) + bytes(1 << 19)
memory = [bytearray(half) for number in range(mib)]
turns = [0] * mib
number = 0
while time.monotonic() < end:
    part, mark = memory[number], bytes([(number + turns[number]) % 256]) * 256
    if turns[number] > 0 and (part[1:4096] != half[1:4096] or part[0::4096] != mark):
        sys.exit(f"MiB {number} has other contents after {turns[number]} turns")
    turns[number] += 1
    part[0::4096] = bytes([(number + turns[number]) % 256]) * 256
    number = (number + 1) % mib
PYTHON

for mode in write-through write-back; do
    step "$mode: swap space and a file system on the device"
    serve --ublk=disk --mode "$mode"
    sectors=$(blockdev --getsz "$device")
    addpart "$device" 1 2048 $((swap_mib * 2048))
    addpart "$device" 2 $(((swap_mib + 1) * 2048)) $((sectors - (swap_mib + 1) * 2048))
    udevadm settle
    disk=$(readlink -f "$device")
    mkswap -q "${disk}p1"
    swapon "${disk}p1"
    mkfs.ext4 -q -F "${disk}p2"
    mount "${disk}p2" "$files"

    step "$mode: ${hog_mib} MiB in use, and files written"
    python3 /tmp/hog.py "$hog_mib" "$seconds" &
    hog=$!
    written=0
    while kill -0 "$hog" 2>/dev/null; do
        head -c 30000000 /dev/urandom >"$files/file"
        sum=$(sha256sum <"$files/file")
        sync "$files/file"
        cp "$files/file" "$files/copy"
        [ "$(sha256sum <"$files/copy")" = "$sum" ] || fail "a file has other contents"
        written=$((written + 60))
    done
    wait "$hog" || fail "the program that fills memory"
    kill -0 "$server" || fail "flaz serve ended: $(tail -n 5 "$serve_log")"
    swapped=$(awk '/^pswpout/ { print int($2 / 256) }' /proc/vmstat)
    echo "swapped out ${swapped} MiB, written ${written} MiB"
    [ "$swapped" -ge 50 ] || fail "there was no memory pressure"
    grep -q '^VmSwap:[[:space:]]*0 kB' "/proc/$server/status" || fail "the daemon was swapped out"
    ! dmesg | grep -E 'blocked for more than|Out of memory|oom-kill' || fail "the kernel's log"

    step "$mode: unmount, stop"
    swapoff "${disk}p1"
    umount "$files"
    stop
    removed() { [ ! -e "$device" ]; }
    wait_for 10 removed
done
