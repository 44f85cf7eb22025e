# shellcheck shell=bash
# The workloads: work_NAME starts the system of the cell, prepares it, and prints its measured phases. The system runs on.

# start: the system of the cell, empty.
start() { "${family}_start"; }

# warm KIND: fills the cache. A large working set needs more requests until the cache is in its steady state: half as many as it
# has blocks.
warm() {
    local half=$((working_mib * 128))
    requests "$1" "$device" $((WARM_REQUESTS > half ? WARM_REQUESTS : half)) "$seed"
    settle
}

# zipf_phase PHASE SEED: counted zipf reads.
zipf_phase() { counted "$1" requests zipf "$device" "$REQUESTS" "$2"; }

work_zipf() {
    start
    warm zipf
    zipf_phase zipf $((seed + 1000))
}

work_mixed() {
    start
    warm mixed
    counted mixed requests mixed "$device" "$REQUESTS" $((seed + 1000))
}

# A scan over a warm cache, and restarts of it.
work_warm() {
    start
    warm zipf
    zipf_phase before $((seed + 1000))
    counted scan scan "$device"
    zipf_phase after-scan $((seed + 2000))
    "${family}_restart"
    zipf_phase after-restart $((seed + 3000))
    if [ "$family" = flaz ]; then
        flaz_crash
        zipf_phase after-kill $((seed + 4000))
    fi
}

# The power is cut after this; the next boot calls after_crash. In write-back, the cache is dirty then.
work_crash() {
    start
    if [ "$mode" = write-back ]; then warm mixed; else warm zipf; fi
    zipf_phase before-crash $((seed + 1000))
    # What was not flushed is lost, also what dm-cache knows of its contents.
    sync "$device"
    sleep 5
    echo "cut the power"
    sleep infinity
}
after_crash() {
    slice_ssd
    counted resume "${family}_resume"
    zipf_phase after-crash $((seed + 2000))
    "${family}_end"
    unslice
}

# Requests a second: once the cache is warm, the disks become as much slower as the processor is.
slow_origin_ms=120
slow_ssd_ms=1
slow_depth=4
slow_requests=4000
# slow_down NAME DISK START MS: the device mapper's NAME, which is linear on DISK from START, gets a delay.
slow_down() {
    local sectors
    sectors=$(blockdev --getsz "/dev/mapper/$1")
    dmsetup load "$1" --table "0 $sectors delay $2 $3 $4 $2 $3 $4"
    dmsetup resume "$1"
}
work_slowed() {
    dmsetup create slow --table "0 $(blockdev --getsz "$ORIGIN") linear $ORIGIN 0"
    origin=/dev/mapper/slow
    start
    warm zipf
    slow_down slow "$ORIGIN" 0 "$slow_origin_ms"
    slow_down ssd "$CACHE" "$ssd_start" "$slow_ssd_ms"
    counted slowed requests zipf "$device" "$slow_requests" $((seed + 1000)) "$slow_depth"
    "${family}_end"
    family=bare
    # udev may still read it.
    udevadm settle
    wait_for 60 dmsetup remove --retry slow
    origin=$ORIGIN
}

# The origin is completed from a dirty cache. The same blocks, written to the bare origin in the order of their addresses, tell
# what the disk needs.
detach_blocks=12000
# shellcheck disable=SC2034 # of counted
write_sorted() { elapsed_ms=$(blocks.py sorted "$device" "$working_mib" "$detach_blocks" "$seed"); }
work_detach() {
    local complete
    start
    if [ "$family" = bare ]; then
        counted bare-writes write_sorted
        return
    fi
    blocks.py shuffled "$device" "$working_mib" "$detach_blocks" "$seed"
    extra=",\"dirty_kib\":$("${family}_dirty")"
    counted detach "${family}_detach"
    extra=
    # The device of bcache begins behind the first sectors of the origin, and stays without a cache.
    complete=$ORIGIN
    [ "$family" != bcache ] || complete=$device
    blockdev --flushbufs "$complete"
    blocks.py check "$complete" "$working_mib" "$detach_blocks" "$seed" || fail "the origin is not complete"
}

# Programs on a file system have little memory, so that the page cache does not take the place of the SSD.
memory_max=48M
files=/mnt/files
mount_files() {
    mkdir -p "$files" /sys/fs/cgroup
    mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /sys/fs/cgroup/small
    echo "$memory_max" >/sys/fs/cgroup/small/memory.max
    mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$device" "${working_mib}M"
    mount "$device" "$files"
}
unmount_files() {
    umount "$files"
    udevadm settle
}
# small COMMAND...: with memory_max.
small() { (echo "$BASHPID" >/sys/fs/cgroup/small/cgroup.procs && exec "$@"); }

postmark_files=16000
postmark_transactions=16000
run_postmark() {
    small postmark /tmp/postmark.conf >/tmp/postmark.out || fail "postmark: $(tail -n 5 /tmp/postmark.out)"
    sync
    requests_done=$postmark_transactions
}
work_postmark() {
    start
    mount_files
    printf 'set %s\n' "location $files" "number $postmark_files" "transactions $postmark_transactions" 'size 500 16000' \
        'subdirectories 100' "seed $seed" >/tmp/postmark.conf
    printf 'run\nquit\n' >>/tmp/postmark.conf
    counted postmark run_postmark
    unmount_files
}

sqlite_transactions=3000
# run_sqlite SEED: transactions on the database in $files.
run_sqlite() {
    blocks.py transactions "$sqlite_transactions" "$1" >/tmp/transactions.sql
    small sqlite3 "$files/database" </tmp/transactions.sql >/tmp/sqlite.out || fail "sqlite3: $(tail -n 5 /tmp/sqlite.out)"
    requests_done=$sqlite_transactions
}
work_sqlite() {
    if [ ! -e /var/tmp/database ]; then
        blocks.py database >/tmp/database.sql
        sqlite3 /var/tmp/database </tmp/database.sql >/dev/null
    fi
    start
    mount_files
    cp /var/tmp/database "$files/database"
    sync
    run_sqlite "$seed"
    settle
    echo 3 >/proc/sys/vm/drop_caches
    counted sqlite run_sqlite $((seed + 1000))
    unmount_files
}
