#!/bin/bash
# flaz as a block device, by ublk: a file system stays mounted on it over clean stops, kills and restarts of the daemon, and
# fio verifies what it writes during kills and stops. Afterwards the device is gone, and the origin is complete.
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files
kills=4
stops=3

modprobe ublk_drv

gone() { [ ! -e "$device" ] && ! compgen -G '/dev/ublkb*' >/dev/null; }

verify_files() { (cd "$files" && sha256sum --quiet --check /tmp/hashes) || fail "files have other contents"; }

flaz create "$CACHE" --origin "$ORIGIN" 2>/dev/null
for mode in write-through write-back; do
    step "$mode: the device, its limits and its status"
    serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096
    queue=/sys/block/$(basename "$(readlink "$device")")/queue
    [ "$(blockdev --getsize64 "$device")" = "$(blockdev --getsize64 "$ORIGIN")" ]
    [ "$(cat "$queue/logical_block_size") $(cat "$queue/write_cache") $(cat "$queue/fua")" = "4096 write back 1" ]
    flaz status -v "$CACHE" | grep -q "Block device *$device" || fail "flaz status does not name the device"

    step "$mode: ext4 stays mounted over a stop, a restart, a kill"
    mkfs.ext4 -q "$device"
    mkdir -p "$files"
    mount "$device" "$files"
    cp -r /usr/lib/x86_64-linux-gnu/gconv /usr/sbin "$files/"
    sync
    (cd "$files" && find . -type f -print0 | xargs -0 sha256sum) >/tmp/hashes
    fstrim "$files"
    stop
    echo 3 >/proc/sys/vm/drop_caches
    verify_files &
    reader=$!
    sleep 1
    kill -0 "$reader" || fail "reads do not wait for the daemon"
    serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096
    wait "$reader" || fail "files were not read after the restart"
    kill_server
    serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096
    echo 3 >/proc/sys/vm/drop_caches
    verify_files
    umount "$files"
    e2fsck -fn "$device" >/tmp/fsck.out 2>&1 || fail "fsck: $(cat /tmp/fsck.out)"

    step "$mode: fio verifies its writes during $kills kills and $stops stops"
    fio --name=load --filename="$device" --rw=randwrite --bsrange=4k-64k --size=200M --io_size=1G --time_based=1 --runtime=600 \
        --iodepth=16 --ioengine=io_uring --direct=1 --verify=crc32c --verify_backlog=256 --verify_fatal=1 \
        --buffer_compress_percentage=50 --fsync=64 >/tmp/fio.log 2>&1 &
    load=$!
    for _ in $(seq "$kills"); do
        sleep 1.5
        kill_server
        serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096
    done
    for _ in $(seq "$stops"); do
        sleep 1
        stop
        serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096
    done
    kill -0 "$load" || fail "fio: $(cat /tmp/fio.log)"
    kill -INT "$load"
    # Its exit status says that it was interrupted.
    wait "$load" || true
    grep -q 'err= 0' /tmp/fio.log || fail "fio: $(cat /tmp/fio.log)"
    ! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"

    step "$mode: another size or a second daemon is refused"
    ! flaz serve "$CACHE" --ublk=disk 2>/tmp/second.log || fail "a second daemon was started"

    step "$mode: a stop without users removes the device"
    stop
    wait_for 10 gone
done

step "the origin alone"
serve --ublk=disk --threads 2 --mode write-back
flaz detach "$CACHE" >/dev/null
wait_for_server
wait_for 10 gone
step "done"
