# shellcheck shell=bash
# The caches: NAME_start creates an empty cache of ssd_mib MiB in the given mode in front of $origin, and sets device;
# NAME_restart is a clean stop and start; NAME_resume a start after the machine has crashed; NAME_dirty prints the KiB that are
# dirty; NAME_detach completes the origin; NAME_end removes everything. The SSD slice is /dev/mapper/ssd.

slice=/dev/mapper/ssd
mib_sectors=2048
metadata_mib=32
origin=$ORIGIN

# slice_ssd: the part of the SSD that the caches get. It does not begin where udev looks for signatures at a boot.
ssd_start=$mib_sectors
slice_ssd() { dmsetup create ssd --table "0 $((ssd_mib * mib_sectors)) linear $CACHE $ssd_start"; }

# wipe: an empty slice of the SSD, and no signature on the origin.
wipe() {
    wipefs -qa "$ORIGIN"
    blkdiscard -f "$CACHE" 2>/dev/null || true
    # Before udev sees it.
    dd if=/dev/zero of="$CACHE" bs=1M count="$((ssd_mib + 1))" oflag=direct status=none
    dd if=/dev/zero of="$SPARE" bs=1M count=8 oflag=direct status=none
    slice_ssd
}

unslice() {
    udevadm settle
    dmsetup remove --retry ssd
}

# The origin alone.
# shellcheck disable=SC2034 # of measure.sh
bare_start() { device=$origin; }
bare_end() { :; }

# dm-cache with smq and blocks of 32 KiB, its smallest. Its metadata is on another disk, so the whole slice is cache.
dmcache_fast=$slice
# dmcache_table POLICY
dmcache_table() {
    local mode_name=writethrough
    [ "$mode" = write-through ] || mode_name=writeback
    echo "0 $((working_mib * mib_sectors)) cache /dev/mapper/metadata $dmcache_fast $origin 64 1 $mode_name $1 0"
}
dmcache_start() {
    dmsetup create metadata --table "0 $((metadata_mib * mib_sectors)) linear $SPARE 0"
    dmsetup create cached --table "$(dmcache_table smq)"
    device=/dev/mapper/cached
}
dmcache_resume() { dmcache_start; }
dmcache_restart() {
    udevadm settle
    dmsetup remove --retry cached
    dmsetup create cached --table "$(dmcache_table smq)"
}
# The status line begins with start and length; dirty blocks of 32 KiB are its field 14.
dmcache_dirty() { dmsetup status cached | awk '{ print $14 * 32 }'; }
dmcache_is_clean() { [ "$(dmcache_dirty)" -eq 0 ]; }
# As lvconvert does: the policy "cleaner" writes everything back.
dmcache_detach() {
    dmsetup load cached --table "$(dmcache_table cleaner)"
    dmsetup resume cached
    wait_for 600 dmcache_is_clean
}
dmcache_end() {
    udevadm settle
    dmsetup remove --retry cached
    dmsetup remove --retry metadata
}

# dm-cache over dm-vdo: the slabs of the volume are on the SSD slice, its index and journals behind the metadata of dm-cache. An
# administrator has to choose its logical size, and a volume that is full fails: so it is as large as the data allows. Two
# blocks that halve do not fit into one, because of their headers: VDO stores the data of 50 % as it is. Where blocks are written
# again, it needs room for both versions for a while.
vdo_slabs=2
vdo_map_cache_blocks=32768
vdo_map_era=16380
vdo_logical_blocks() {
    case "$SAVED_PCT,$workload" in
    75,*) echo 43008 ;;
    *,zipf | *,warm | *,slowed) echo 15360 ;;
    *) echo 12288 ;;
    esac
}
vdo_table() {
    echo "0 $(($(vdo_logical_blocks) * 8)) vdo V4 /dev/mapper/volume $vdo_physical_blocks 4096 $vdo_map_cache_blocks $vdo_map_era" \
        "deduplication off compression on"
}
vdo_volume() {
    local before slabs behind start=$((metadata_mib * mib_sectors))
    read -r before slabs behind <<<"$(format_vdo.py sizes "$vdo_slabs")"
    dmsetup create volume <<TABLE
0 $before linear $SPARE $start
$before $slabs linear $slice 0
$((before + slabs)) $behind linear $SPARE $((start + before))
TABLE
    vdo_physical_blocks=$(((before + slabs + behind) / 8))
}
vdo_cache() {
    dmsetup create vdo --table "$(vdo_table)"
    dmcache_fast=/dev/mapper/vdo
    dmcache_start
}
vdo_start() {
    vdo_volume
    format_vdo.py format /dev/mapper/volume "$vdo_slabs" "$(vdo_logical_blocks)"
    vdo_cache
}
vdo_resume() {
    modprobe dm-vdo
    vdo_volume
    vdo_cache
}
vdo_dirty() { dmcache_dirty; }
vdo_detach() { dmcache_detach; }
vdo_restart() {
    udevadm settle
    dmsetup remove --retry cached
    dmsetup remove --retry vdo
    dmsetup create vdo --table "$(vdo_table)"
    dmsetup create cached --table "$(dmcache_table smq)"
}
vdo_end() {
    dmsetup status vdo
    dmcache_end
    dmsetup remove --retry vdo
    dmsetup remove --retry volume
    dmcache_fast=$slice
}

# bcache without bypass under congestion, and with its sequential cut-off only where a scan is measured.
bcache_start() {
    modprobe bcache
    local options=() mode_name=writethrough
    [ "$mode" = write-through ] || { options=(--writeback) && mode_name=writeback; }
    make-bcache --wipe-bcache --block 4k --bucket "${BUCKET:-64k}" -C "$slice" -B "$origin" "${options[@]}" >/dev/null
    bcache_register
    [ "$(sed 's/.*\[\(.*\)\].*/\1/' /sys/block/bcache0/bcache/cache_mode)" = "$mode_name" ] || fail "bcache: wrong mode"
}
bcache_register() {
    local name
    udevadm settle
    for name in "$(readlink -f "$slice")" "$(readlink -f "$origin")"; do
        echo "$name" >/sys/fs/bcache/register 2>/dev/null || true
    done
    wait_for 20 test -e /sys/block/bcache0/bcache/cache
    [ "$workload" = warm ] || echo 0 >/sys/block/bcache0/bcache/sequential_cutoff
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
bcache_resume() {
    modprobe bcache
    bcache_register
}
# Its figure has a unit and one digit behind the point.
bcache_dirty() {
    python3 -c '
import sys
text = open("/sys/block/bcache0/bcache/dirty_data").read().strip()
units = {"k": 1, "M": 1024, "G": 1024 * 1024}
print(round(float(text[:-1]) * units[text[-1]]) if text[-1] in units else round(float(text) / 1024))'
}
bcache_is_detached() { [ "$(cat /sys/block/bcache0/bcache/state)" = "no cache" ]; }
bcache_detach() {
    echo 1 >/sys/block/bcache0/bcache/detach
    wait_for 600 bcache_is_detached
}
bcache_end() { bcache_stop; }

# flaz with a codec, on ublk.
# shellcheck disable=SC2034 # of lib.sh
served=$slice
flaz_start() {
    # Dirty blocks of the cell before are not wanted.
    rm -rf /var/lib/flaz
    flaz create "$slice" --force --discard-dirty --origin "$origin" --codec "$codec" --shards 2 >/tmp/create.log 2>&1 ||
        fail "$(cat /tmp/create.log)"
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
flaz_resume() {
    modprobe ublk_drv
    flaz_serve
}
flaz_dirty() {
    flaz status "$slice" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["live"]["write_back"]["dirty_blocks"] * 4)'
}
flaz_detach() {
    flaz detach "$slice" >/dev/null
    wait_for_server
    detached=yes
}
detached=
flaz_gone() { ! compgen -G '/dev/ublkb*' >/dev/null; }
flaz_end() {
    if [ -z "$detached" ]; then stop; fi
    detached=
    wait_for 20 flaz_gone
}
