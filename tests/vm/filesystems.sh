#!/bin/bash
# ext4, xfs and btrfs on a block device: made, filled until nothing fits, trimmed, read after a restart of the daemon, checked by
# their own tools. Then fio writes and verifies all sizes of requests, in order and at random, with trims.
#
# boot: --timeout 1800 --memory 3G --origin 640M --cache 128M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files
mkdir -p "$files"

modprobe -a ublk_drv xfs btrfs

serve_disk() { serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096; }

# check FILE-SYSTEM: of the unmounted device.
check() {
    case "$1" in
    ext4) e2fsck -fn "$device" ;;
    xfs) xfs_repair -n "$device" ;;
    btrfs) btrfs check --check-data-csum "$device" ;;
    esac >/tmp/check.out 2>&1 || fail "$1: $(tail -n 20 /tmp/check.out)"
}

hash_files() { (cd "$files" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$1"; }
verify_files() {
    echo 3 >/proc/sys/vm/drop_caches
    (cd "$files" && sha256sum --quiet --check /tmp/hashes) || fail "$1: files have other contents"
}

# fill NAME: writes a file until the file system is full.
fill() {
    ! dd if=/dev/urandom of="$files/$1" bs=1M status=none 2>/tmp/fill.out || fail "the file system did not become full"
    grep -q 'No space left' /tmp/fill.out || fail "$(cat /tmp/fill.out)"
    sync
}

use() {
    step "$mode, $1: make, use, fill, delete, trim"
    wipefs -qa "$device"
    "mkfs.$1" -q "$device" >/dev/null
    mount "$device" "$files"
    cp -r /usr/lib/python3* /usr/sbin "$files/"
    fill full
    rm "$files/full"
    sync
    fstrim "$files"
    cp -r /usr/lib/x86_64-linux-gnu/gconv "$files/"
    hash_files /tmp/hashes
    sync
    verify_files "$1"
    umount "$files"
    check "$1"

    step "$mode, $1: after a restart of the daemon"
    stop
    serve_disk
    mount "$device" "$files"
    verify_files "$1, after a restart"
    [ "$(wc -l </tmp/hashes)" -gt 300 ] || fail "$(wc -l </tmp/hashes) files were compared"
    umount "$files"
    check "$1"
}

# verify OPTION...: fio writes and reads back 64 MiB.
verify() {
    fio --name=verify --filename="$device" --direct=1 --ioengine=io_uring --iodepth=8 --size=64M \
        --verify=crc32c --verify_fatal=1 --buffer_compress_percentage=50 --refill_buffers "$@" >/tmp/fio.out 2>&1 ||
        fail "fio $*: $(tail -n 20 /tmp/fio.out)"
}

for mode in write-through write-back; do
    flaz create "$CACHE" --force --discard-dirty --origin "$ORIGIN" 2>/dev/null
    serve_disk
    for kind in ext4 xfs btrfs; do
        use "$kind"
    done

    step "$mode: fio with requests of 4 KiB to 1 MiB"
    for bytes in 4k 16k 64k 256k 1M; do
        verify --rw=write --bs="$bytes" --offset=64M
        verify --rw=randwrite --bs="$bytes" --offset=128M
    done
    verify --rw=randwrite --bsrange=4k-1M --bs_unaligned=0 --offset=192M --norandommap=0
    step "$mode: trims between writes"
    verify --rw=trimwrite --bs=16k --offset=256M
    verify --rw=randtrimwrite --bs=64k --offset=256M

    step "$mode: the origin alone"
    sum=$(sha256sum <"$device")
    flaz detach "$CACHE" >/dev/null
    wait_for_server
    [ "$sum" = "$(sha256sum <"$ORIGIN")" ] || fail "the origin differs from the device"
done
