#!/bin/bash
# Logs of dm-log-writes, replayed to their flushes. First the disks under flaz: cache, origin and host state on one logged device,
# or each on its own. After a power cut at any flush, FUA write or mark, the cache starts, and each block has a version that was
# acknowledged before the last flush, or a later one. Then the block device under a file system: its log is replayed to a
# flaz device, where the file system is whole and has every synced file.
#
# REPLAY_S is the time for each of the six replays; SEED says which unstable writes a power cut leaves.
#
# boot: --timeout 2400 --memory 3G --spare 1G
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

replay_s=${REPLAY_S:-50}
seed=${SEED:-$RANDOM}
device=/dev/flaz/disk
state=/mnt/state
files=/mnt/files

# The parts, in MiB: start and length.
declare -A start=([ssd]=0 [origin]=24 [state]=56) length=([ssd]=24 [origin]=32 [state]=16)
parts="ssd origin state"
log_mib=256
writers=2
writer_blocks=4000

modprobe -a ublk_drv dm-mod dm-log-writes dm-snapshot loop xfs
# Disks in memory, where a flush is fast. The logs are on $SPARE.
memory=/mnt/memory
mkdir -p "$state" "$files" "$memory"
mount -t tmpfs -o size=80% tmpfs "$memory"
disk() {
    truncate -s "$2" "$memory/$1"
    losetup --find --show "$memory/$1"
}
image=$memory/image
image_disk=$(disk image 72M)
snapshot_disk=$(disk snapshot 256M)
cache_disk=$(disk cache 64M)
origin_disk=$(disk origin 384M)

linear() { echo "0 $(($3 * 2048)) linear $1 $(($2 * 2048))"; }
part() { dmsetup create "$1" --table "$(linear "$2" "$3" "${length[${1##*-}]}")"; }
log() { dmsetup create "$1" --table "0 $(blockdev --getsz "$2") log-writes $2 $3"; }

# above LOGGED: sets $above to a loop device on a logged device. It sends one flush at a time, and makes flushes of FUA writes.
# Otherwise the log is wrong in two cases. A write is logged with the first flush after it: if a second flush ends before that
# one, the write is stable earlier than the log says. And a FUA write is logged at once, before earlier writes to its place.
above() {
    above=$(losetup --find --show --direct-io=on "/dev/mapper/$1")
    loops+=("$above")
}
loops=()

# start_logs one|each: makes the parts. Sets $logged, the devices with a log, and $logs, arguments of replay.py.
start_logs() {
    local part number=0
    logged=() logs=()
    blkdiscard --force "$origin_disk" 2>/dev/null
    if [ "$1" = one ]; then
        log logged "$origin_disk" "$SPARE"
        above logged
        logged=(logged) logs=("$SPARE")
    fi
    for part in $parts; do
        if [ "$1" = one ]; then
            part "$part" "$above" "${start[$part]}"
        else
            part "disk-$part" "$origin_disk" "${start[$part]}"
            dmsetup create "log-$part" --table "$(linear "$SPARE" $((number * log_mib)) "$log_mib")"
            log "logged-$part" "/dev/mapper/disk-$part" "/dev/mapper/log-$part"
            above "logged-$part"
            part "$part" "$above" 0
            logged+=("logged-$part") logs+=("/dev/mapper/log-$part")
            number=$((number + 1))
        fi
        logs+=("$part=$((${start[$part]} << 20)):$((${length[$part]} << 20))")
    done
}

# end_logs: the logs are complete, and the parts are those of $image.
end_logs() {
    local name
    udevadm settle
    for name in $parts; do
        dmsetup suspend "$name"
        linear "$image_disk" "${start[$name]}" "${length[$name]}" | dmsetup load "$name"
        dmsetup resume "$name"
    done
    close_logs
}

close_logs() {
    local name
    losetup --detach "${loops[@]}"
    loops=()
    udevadm settle
    for name in "${logged[@]}"; do
        [[ $(dmsetup status "$name") != *disabled* ]] || fail "the log is full"
        dmsetup remove --retry "$name"
    done
}

remove_parts() {
    local name
    udevadm settle
    for name in $(dmsetup ls | grep -oE '^(disk-|log-)?(ssd|origin|state)'); do
        dmsetup remove --retry "$name"
    done
}

# start_replay ARGUMENT...: of replay.py. ask COMMAND: sets $answer.
start_replay() {
    rm -f /tmp/asked /tmp/answers
    mkfifo /tmp/asked
    replay.py "$@" </tmp/asked >/tmp/answers 2>&1 &
    replayer=$!
    exec {asked}>/tmp/asked
    wait_for 60 test -s /tmp/answers
    answers=1
    grep -q 'entries$' /tmp/answers || fail "replay.py: $(cat /tmp/answers)"
    step "$(tail -n 1 /tmp/answers)"
}
ask() {
    echo "$*" >&"$asked"
    answers=$((answers + 1))
    wait_for 120 answered
    answer=$(sed -n "${answers}p" /tmp/answers)
    case "$answer" in Traceback*) fail "replay.py: $(cat /tmp/answers)" ;; esac
}
answered() { [ "$(wc -l </tmp/answers)" -ge "$answers" ]; }
end_replay() {
    # Closing the pipe is not enough: a daemon may have inherited it.
    echo quit >&"$asked"
    exec {asked}>&-
    wait "$replayer"
}

# start_flaz: on the parts.
start_flaz() {
    mount /dev/mapper/state "$state"
    serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096 --state-dir "$state"
}

# record one|each: a workload with a kill, a restart and a clean stop.
record() {
    local writer
    step "$mode, $1: record"
    start_logs "$1"
    mke2fs -q -t ext4 -b 1024 /dev/mapper/state
    served=/dev/mapper/ssd
    flaz create "$served" --origin /dev/mapper/origin --shards 2 --region-size 1M >/tmp/create.out 2>&1 ||
        fail "$(cat /tmp/create.out)"
    start_flaz
    dmsetup message "${logged[0]}" 0 mark begin
    rm -f "$writers_end" /tmp/writes*
    processes=() ledgers=()
    for writer in $(seq "$writers"); do
        ledger.py history "$device" $(((writer - 1) * writer_blocks)) "$writer_blocks" "/tmp/writer$writer" "$writers_end" \
            "${logged[0]}" >"/tmp/writes$writer" 2>&1 &
        processes+=("$!") ledgers+=("/tmp/writer$writer")
    done
    if [ "$1" = each ]; then
        replay.py freeze "$writers_end" "${logged[@]}" >/tmp/writes-freeze 2>&1 &
        processes+=("$!")
    fi
    sleep 4
    kill_server
    serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096 --state-dir "$state"
    sleep 3
    stop
    serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096 --state-dir "$state"
    sleep 3
    touch "$writers_end"
    for writer in "${processes[@]}"; do
        wait "$writer" || fail "a writer: $(cat /tmp/writes*)"
    done
    cat /tmp/writes*
    stop
    umount "$state"
    end_logs
}

# started_from_cut: whether flaz starts on the parts. It may be refused.
started_from_cut() {
    mount /dev/mapper/state "$state"
    flaz serve "$served" --ublk=disk --threads 2 --mode "$mode" --block-size 4096 --state-dir "$state" >>"$serve_log" 2>&1 &
    server=$!
    starts=$((starts + 1))
    wait_for 60 started
    if kill -0 "$server" 2>/dev/null; then return 0; fi
    starts=$((starts - 1))
    umount "$state"
    return 1
}

stop_after_cut() {
    stop
    umount "$state"
}

# replay one|each: power cuts.
replay() {
    local point=0 blocks=0 when began_s=$SECONDS
    start_replay cuts "$image" begin "$replay_s" "$seed" "${logs[@]}" "${ledgers[@]}"
    ask next
    while [ "$answer" != end ]; do
        when=$answer point=$((point + 1))
        started_from_cut || fail "$when: refused: $(tail -n 5 "$serve_log")"
        ask check "$device"
        case "$answer" in ok*) ;; *) fail "$when: $answer" ;; esac
        blocks=$((blocks + ${answer#ok }))
        if [ "$point" -eq 2 ]; then
            ask check "$device" 5
            case "$answer" in LOST*) ;; *) fail "$when: five missing flushes are not detected: $answer" ;; esac
            step "the check detects missing writes: ${answer:0:70}"
        fi
        if [ $((point % 4)) -eq 3 ]; then
            # What was read is on the origin in the end.
            flaz detach "$served" >/dev/null
            wait_for_server
            ask check /dev/mapper/origin
            case "$answer" in ok*) ;; *) fail "$when, on the origin: $answer" ;; esac
            umount "$state"
        else
            stop_after_cut
        fi
        ask next
    done
    end_replay
    [ "$blocks" -gt $((point * 100)) ] || fail "only $blocks blocks were checked"
    step "$mode, $1: $point power cuts, $blocks blocks checked, 0 lost, $((SECONDS - began_s)) s"
}

# lies PART: as if flaz had never sent a flush to it.
lies() {
    local point=0 detected=0
    start_replay cuts "$image" begin $((replay_s / 5)) "$seed" --no-flush "$1" "${logs[@]}" "${ledgers[@]}"
    ask next
    while [ "$answer" != end ]; do
        point=$((point + 1))
        if started_from_cut; then
            ask check "$device"
            case "$answer" in LOST*) detected=$((detected + 1)) ;; esac
            stop_after_cut
        else
            detected=$((detected + 1))
        fi
        ask next
    done
    end_replay
    [ "$detected" -gt 0 ] || fail "missing flushes of $1 are not detected"
    step "$mode: missing flushes of $1 are detected at $detected of $point power cuts"
}

# new_disk: flaz on the whole disks, all zeroes.
new_disk() {
    served=$cache_disk
    # The host remembers that the origin lacks the dirty blocks of the cache before.
    rm -rf /var/lib/flaz
    blkdiscard --force "$origin_disk" 2>/dev/null
    flaz create "$cache_disk" --force --discard-dirty --origin "$origin_disk" >/tmp/create.out 2>&1 || fail "$(cat /tmp/create.out)"
    serve_disk
}
serve_disk() { serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096; }

# record_files FILE-SYSTEM: files with fsync, on the log of a block device.
record_files() {
    step "$mode, $1: record"
    new_disk
    log logged "$device" "$SPARE"
    logged=(logged)
    above logged
    "mkfs.$1" -q "$above"
    mount "$above" "$files"
    sync
    dmsetup message logged 0 mark begin
    rm -f "$writers_end"
    ledger.py files "$files" /tmp/ledger-files "$writers_end" logged >/tmp/writes &
    sleep 8
    touch "$writers_end"
    wait "$!" || fail "the writer of files"
    umount "$files"
    close_logs
    stop
}

# check_copy FILE-SYSTEM COUNT: the first COUNT files of the ledger, in a snapshot of the device.
check_copy() {
    local status=0
    dmsetup create point --table "0 $(blockdev --getsz "$device") snapshot $device $snapshot_disk N 8"
    mount "/dev/mapper/point" "$files" || fail "$when: $1 cannot be mounted"
    ledger.py check-files "$files" /tmp/ledger-files "$2" >>/tmp/checks 2>&1 || status=$?
    umount "$files"
    case "$1" in
    ext4) e2fsck -fn /dev/mapper/point ;;
    xfs) xfs_repair -n /dev/mapper/point ;;
    esac >/tmp/fsck.out 2>&1 || fail "$when: $1: $(tail -n 20 /tmp/fsck.out)"
    udevadm settle
    dmsetup remove --retry point
    return "$status"
}

# replay_files FILE-SYSTEM: to another flaz device, which is killed now and then.
replay_files() {
    local point=0 count when began_s=$SECONDS
    new_disk
    rm -f /tmp/checks
    start_replay copy "$device" begin "$replay_s" "$seed" "$SPARE"
    ask next
    while [ "$answer" != end ]; do
        when=$answer point=$((point + 1))
        ask marked ledger-files
        count=$answer
        check_copy "$1" "$count" || fail "$when, after $count files: $(tail -n 1 /tmp/checks)"
        if [ "$point" -eq 2 ]; then
            ! check_copy "$1" $((count + 5)) || fail "$when: five missing files are not detected"
            step "the check detects missing files: $(tail -n 1 /tmp/checks)"
        fi
        if [ $((point % 4)) -eq 3 ]; then
            kill_server
            serve_disk
        fi
        ask next
    done
    end_replay
    stop
    step "$mode, $1: $point points, $(sum checked /tmp/checks) files checked, 0 lost, $((SECONDS - began_s)) s"
}

step "seed $seed"
for mode in write-through write-back; do
    for kind in one each; do
        record "$kind"
        replay "$kind"
        if [ "$kind" = each ]; then
            case "$mode" in
            write-through) lies origin ;;
            write-back) lies ssd ;;
            esac
        fi
        remove_parts
    done
done

mode=write-through
for kind in xfs ext4; do
    record_files "$kind"
    replay_files "$kind"
    mode=write-back
done
