# shellcheck shell=bash
# The caches: NAME_start creates an empty cache of ssd_mib MiB in the given mode and sets device; NAME_restart is a clean
# stop and start; NAME_end removes everything. The SSD slice is /dev/mapper/ssd.

slice=/dev/mapper/ssd
mib_sectors=2048
metadata_mib=32

# wipe: an empty slice of the SSD, and no signature on the origin.
wipe() {
    wipefs -qa "$ORIGIN"
    blkdiscard -f "$CACHE" 2>/dev/null || true
    dd if=/dev/zero of="$CACHE" bs=1M count="$ssd_mib" oflag=direct status=none
    dd if=/dev/zero of="$SPARE" bs=1M count=8 oflag=direct status=none
    dmsetup create ssd --table "0 $((ssd_mib * mib_sectors)) linear $CACHE 0"
}

unslice() {
    udevadm settle
    dmsetup remove --retry ssd
}


# dm-cache with smq and blocks of 32 KiB, its smallest. Its metadata is on another disk, so the whole slice is cache.
dmcache_table() {
    local mode_name=writethrough
    [ "$mode" = write-through ] || mode_name=writeback
    echo "0 $((working_mib * mib_sectors)) cache /dev/mapper/metadata $slice $ORIGIN 64 1 $mode_name smq 0"
}
dmcache_start() {
    dmsetup create metadata --table "0 $((metadata_mib * mib_sectors)) linear $SPARE 0"
    dmsetup create cached --table "$(dmcache_table)"
    device=/dev/mapper/cached
}
dmcache_restart() {
    udevadm settle
    dmsetup remove --retry cached
    dmsetup create cached --table "$(dmcache_table)"
}
dmcache_end() {
    udevadm settle
    dmsetup remove --retry cached
    dmsetup remove --retry metadata
}

# bcache without a sequential cut-off and without bypass under congestion.
bcache_start() {
    modprobe bcache
    local options=() mode_name=writethrough
    [ "$mode" = write-through ] || { options=(--writeback) && mode_name=writeback; }
    make-bcache --wipe-bcache --block 4k --bucket "${BUCKET:-64k}" -C "$slice" -B "$ORIGIN" "${options[@]}" >/dev/null
    bcache_register
    [ "$(sed 's/.*\[\(.*\)\].*/\1/' /sys/block/bcache0/bcache/cache_mode)" = "$mode_name" ] || fail "bcache: wrong mode"
}
bcache_register() {
    local name
    udevadm settle
    for name in "$(readlink -f "$slice")" "$ORIGIN"; do
        echo "$name" >/sys/fs/bcache/register 2>/dev/null || true
    done
    wait_for 20 test -e /sys/block/bcache0/bcache/cache
    echo 0 >/sys/block/bcache0/bcache/sequential_cutoff
    echo 0 >/sys/block/bcache0/bcache/cache/congested_read_threshold_us
    echo 0 >/sys/block/bcache0/bcache/cache/congested_write_threshold_us
    device=/dev/bcache0
}
bcache_gone() { [ ! -e /sys/block/bcache0 ] && ! compgen -G '/sys/fs/bcache/*-*' >/dev/null; }
bcache_stop() {
    local set
    udevadm settle
    for set in /sys/fs/bcache/*-*; do
        echo 1 >"$set/stop"
    done
    if [ -e /sys/block/bcache0/bcache/stop ]; then echo 1 >/sys/block/bcache0/bcache/stop; fi
    wait_for 60 bcache_gone
}
bcache_restart() {
    bcache_stop
    bcache_register
}
bcache_end() { bcache_stop; }

# flaz with a codec, on ublk.
# shellcheck disable=SC2034 # of lib.sh
served=$slice
flaz_start() {
    flaz create "$slice" --force --origin "$ORIGIN" --codec "$codec" --shards 2 >/dev/null 2>&1
    flaz_serve
}
flaz_serve() {
    serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096
    device=/dev/flaz/disk
}
flaz_restart() {
    stop
    flaz_serve
}
flaz_crash() {
    kill_server
    flaz_serve
}
flaz_gone() { ! compgen -G '/dev/ublkb*' >/dev/null; }
flaz_end() {
    stop
    wait_for 20 flaz_gone
}
