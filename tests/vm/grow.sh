#!/bin/bash
# The origin grows under its cache. The kernel's NBD device has the new size at once, under ext4 and writers, which is resized while
# it is mounted; a ublk device keeps its size where the driver cannot change it, also when a server takes it over, until it is
# made anew. All that was acknowledged is there afterwards, through the cache and on the origin alone.
#
# boot: --timeout 1800 --origin 768M --cache 64M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files
small=$((320 << 20))
large=$((640 << 20))
partial=512

modprobe -a nbd ublk_drv loop dm-mod
mkdir -p "$files" /mnt/images
mkfs.ext4 -qF "$ORIGIN"
mount "$ORIGIN" /mnt/images
image=/mnt/images/origin

serve_disk() { serve "--$driver=disk" --threads 2 --mode "$mode" --block-size 512 --nbd unix:/tmp/nbd.sock; }

size_of() { [ "$(blockdev --getsize64 "$1")" = "$2" ] || fail "$1 has $(blockdev --getsize64 "$1") bytes, expected $2"; }

gone() { [ ! -e "$device" ]; }

# origin SIZE: makes the origin anew, a loop device on a file.
origin() {
    [ -z "${loop:-}" ] || losetup -d "$loop"
    rm -f "$image"
    truncate -s "$1" "$image"
    loop=$(losetup --show -f "$image")
}

# extend SIZE: of the origin, while it is open, as lvextend does.
extend() {
    truncate -s "$1" "$image"
    losetup -c "$loop"
    size_of "$loop" "$1"
}

# check_all DEVICE: every file of the ledger is there; unmounts the file system, and checks it.
check_all() {
    echo 3 >/proc/sys/vm/drop_caches
    ledger.py check-files "$files" /tmp/ledger-files >>/tmp/checks || fail "files"
    umount "$files"
    e2fsck -fn "$1" >/tmp/fsck.out 2>&1 || fail "fsck: $(cat /tmp/fsck.out)"
}

start_files() {
    rm -f "$writers_end"
    ledger.py files "$files" /tmp/ledger-files "$writers_end" >>/tmp/writes 2>&1 &
    files_writer=$!
}

stop_files() {
    touch "$writers_end"
    wait "$files_writer" || fail "the writer of files: $(cat /tmp/writes)"
    [ "$(sum failed /tmp/writes)" -eq 0 ] || fail "requests failed: $(cat /tmp/writes)"
}

for mode in write-through write-back; do
    step "$mode: the kernel's NBD device, resized under ext4 and a writer"
    driver=nbd-device
    rm -f /tmp/checks /tmp/ledger* /tmp/writes
    # The last block is partial.
    origin $((small + partial))
    flaz create "$CACHE" --force --discard-dirty --origin "$loop" 2>/dev/null
    serve_disk
    size_of "$device" $((small + partial))
    mkfs.ext4 -q "$device"
    mount "$device" "$files"
    start_files
    sleep 2
    extend "$large"
    sleep 1
    size_of "$device" $((small + partial))
    flaz status "$CACHE" --json | grep -q "grown to $large bytes" || fail "the status does not say that the origin has grown"
    flaz volume resize "$CACHE" >/tmp/resized || fail "volume resize"
    grep -q "($large bytes)" /tmp/resized || fail "resized: $(cat /tmp/resized)"
    grep -q "^$device: has the new size" /tmp/resized || fail "resized: $(cat /tmp/resized)"
    size_of "$device" "$large"
    [ "$(nbdinfo --size 'nbd+unix:///?socket=/tmp/nbd.sock')" = "$large" ] || fail "the NBD export has another size"
    resize2fs "$device" >/dev/null 2>&1 || fail "resize2fs"
    [ "$(($(stat -f -c '%b * %S' "$files")))" -gt $((small + (small >> 1))) ] || fail "the file system has not grown"
    # Beyond the old end, in write-back as dirty data.
    head -c $((320 << 20)) /dev/urandom >"$files/beyond"
    sync
    hash=$(sha256sum <"$files/beyond")

    step "$mode: killed, and taken over at the new size"
    kill_server
    serve_disk
    size_of "$device" "$large"
    sleep 1
    stop_files
    echo 3 >/proc/sys/vm/drop_caches
    [ "$(sha256sum <"$files/beyond")" = "$hash" ] || fail "the file beyond the old end"
    check_all "$device"
    again=$(flaz volume resize "$CACHE")
    [[ $again == "the volume has the size of its origin"* ]] || fail "resized again: $again"

    step "$mode: the origin alone"
    flaz detach "$CACHE" >/dev/null
    wait_for_server
    wait_for 10 gone
    mount -o ro "$loop" "$files"
    [ "$(sha256sum <"$files/beyond")" = "$hash" ] || fail "the file beyond the old end, on the origin"
    check_all "$loop"
done

for mode in write-through write-back; do
    step "$mode: a ublk device"
    driver=ublk
    rm -f /tmp/ledger* /tmp/writes
    origin "$small"
    flaz create "$CACHE" --force --discard-dirty --origin "$loop" 2>/dev/null
    serve_disk
    mkfs.ext4 -q "$device"
    mount "$device" "$files"
    start_files
    sleep 1
    extend "$large"
    flaz volume resize "$CACHE" >/tmp/resized || fail "volume resize"
    if grep -q "^$device: has the new size" /tmp/resized; then
        echo "the driver can change the size of a device"
        size_of "$device" "$large"
    else
        grep -q "^$device: it has $small bytes until it is created again" /tmp/resized || fail "resized: $(cat /tmp/resized)"
        size_of "$device" "$small"
        flaz status "$CACHE" --json | grep -q "$device has $small bytes" || fail "the status does not name the smaller device"

        step "$mode: killed with a smaller device, which keeps its size and its file system"
        kill_server
        refused 'waits for its server' flaz serve "$CACHE" --nbd unix:/tmp/other.sock
        refused 'waits for its server' flaz volume resize "$CACHE"
        serve_disk
        size_of "$device" "$small"
        sleep 1
        step "$mode: stopped with a smaller device in use, and taken over"
        stop
        serve_disk
        size_of "$device" "$small"
        stop_files
        check_all "$device"

        step "$mode: made anew"
        stop
        wait_for 10 gone
        serve_disk
        size_of "$device" "$large"
        mount "$device" "$files"
        start_files
    fi
    resize2fs "$device" >/dev/null 2>&1 || fail "resize2fs"
    head -c $((320 << 20)) /dev/urandom >"$files/beyond"
    sync
    hash=$(sha256sum <"$files/beyond")
    stop_files
    check_all "$device"
    stop
    wait_for 10 gone

    step "$mode: an idle cache, whose origin grows again"
    extend $((large + (16 << 20)))
    flaz volume resize "$CACHE" >/dev/null || fail "volume resize of an idle cache"
    serve_disk
    size_of "$device" $((large + (16 << 20)))
    mount "$device" "$files"
    [ "$(sha256sum <"$files/beyond")" = "$hash" ] || fail "the file beyond the old end"
    umount "$files"
    flaz detach "$CACHE" >/dev/null
    wait_for_server
    wait_for 10 gone
done
! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"

step "an origin that shrinks is refused"
truncate -s "$small" "$image"
losetup -c "$loop"
refused 'expected at least' flaz volume resize "$CACHE"
losetup -d "$loop"
umount /mnt/images
step "done"
