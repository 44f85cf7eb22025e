#!/bin/bash
# The daemon of a block device is killed under load, 20 times in each mode, and restarted from another file of the program, as
# an upgrade does it. Writers of blocks check meanwhile that every acknowledged write is read; every file that was written with
# fsync is there in the end. Then the same is read after a clean restart, and at last from the origin alone.
#
# boot: --timeout 1800 --memory 3G --origin 1G --cache 64M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

kills=${KILLS:-20}
upgrades=4
writers=3
writer_blocks=5000
device=/dev/flaz/disk
files=/mnt/files
# The device has a part for a file system, and a part for blocks.
files_sectors=$((512 * 2048))

modprobe -a ublk_drv dm-mod

# A file to replace, as by a package manager. Another build, if there is one, takes turns with this one.
mkdir /tmp/program
builds=(/flaz/flaz)
if [ -x /flaz/flaz-other ]; then builds+=(/flaz/flaz-other); fi
upgrade() {
    cp "${builds[$1 % ${#builds[@]}]}" /tmp/program/new
    mv /tmp/program/new /tmp/program/flaz
}
PATH=/tmp/program:$PATH

serve_disk() { serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096; }

check_files() { ledger.py check-files "$files" /tmp/ledger-files >>/tmp/checks || fail "files, $1"; }

for mode in write-through write-back; do
    upgrade 0
    rm -f /tmp/checks /tmp/ledger*
    flaz create "$CACHE" --force --discard-dirty --origin "$ORIGIN" 2>/dev/null
    serve_disk
    parts "$device"
    mkfs.ext4 -q /dev/mapper/files
    mkdir -p "$files"
    mount /dev/mapper/files "$files"

    step "$mode: $kills kills and $upgrades upgrades under load"
    start_writers /dev/mapper/blocks
    ledger.py files "$files" /tmp/ledger-files "$writers_end" >>/tmp/writes 2>&1 &
    processes+=("$!")
    for kill in $(seq "$kills"); do
        sleep "$((kill % 2)).$((kill % 10))"
        kill_server
        serve_disk
        if [ $((kill * upgrades / kills)) -ne $(((kill - 1) * upgrades / kills)) ]; then
            upgrade "$kill"
            stop
            serve_disk
        fi
        for process in "${processes[@]}"; do
            kill -0 "$process" || fail "a writer ended: $(cat /tmp/writes)"
        done
    done
    stop_writers
    [ "$failed" -eq 0 ] || fail "$failed requests failed"

    step "$mode: all is there"
    echo 3 >/proc/sys/vm/drop_caches
    check_files "after the kills"
    verify_blocks /dev/mapper/blocks
    umount "$files"
    e2fsck -fn /dev/mapper/files >/tmp/fsck.out 2>&1 || fail "fsck: $(cat /tmp/fsck.out)"
    unparts
    stop
    serve_disk
    parts "$device"
    verify_blocks /dev/mapper/blocks
    unparts
    flaz detach "$CACHE" >/dev/null
    wait_for_server
    parts "$ORIGIN"
    verify_blocks /dev/mapper/blocks
    mount "/dev/mapper/files" "$files"
    check_files "on the origin"
    umount "$files"
    unparts
    ! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"
    echo "$mode: $kills kills, $upgrades upgrades, $(sum acknowledged /tmp/writes) writes acknowledged," \
        "$(sum checked /tmp/writes) blocks read meanwhile, $(sum checked /tmp/checks) blocks and files read afterwards, 0 lost"
done
