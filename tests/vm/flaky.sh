#!/bin/bash
# An SSD that dm-flakey makes unreliable, under load: it is there and gone, reads fail, writes fail, reads or writes are damaged, or
# writes are acknowledged and dropped. In write-through no request fails. In write-back dirty blocks may end with EIO, or the
# next start is refused. Nothing ever reads as something older: the writers check this meanwhile, and every block is read afterwards.
#
# boot: --timeout 1800 --origin 192M --cache 64M --spare 64M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
served=/dev/mapper/ssd
writer_blocks=6000

modprobe -a ublk_drv dm-mod dm-flakey
# The console would show every failed request.
dmesg --console-level 1

sectors=$(blockdev --getsz "$CACHE")
# table TABLE: of the SSD. Requests in flight end first.
table() {
    dmsetup suspend --nolockfs ssd
    echo "0 $sectors $*" | dmsetup load ssd
    dmsetup resume ssd
}
good() { table linear "$CACHE" 0; }
# flaky UP DOWN [FEATURE...]: bad for DOWN seconds after each UP seconds; without features, everything fails.
flaky() {
    local up=$1 down=$2
    shift 2
    table flakey "$CACHE" 0 "$up" "$down" $# "$@"
}
dmsetup create ssd --table "0 $sectors linear $CACHE 0"

serve_disk() { serve --ublk=disk --threads 2 --mode "$mode" --block-size 4096 --device-timeout 5 --dirty-limit 50; }
report() { flaz status "$served" --json | python3 -c "import json, sys; print(json.load(sys.stdin)['live']$1)"; }
log_says() { tail -n "+$log_start" "$serve_log" | grep "$1" >/dev/null || fail "the log does not say '$1': $(tail -n 5 "$serve_log")"; }

# begin NAME: a new cache, and writers. $SPARE gets what the origin has after three seconds.
begin() {
    step "$mode: $1"
    good
    dd if=/dev/zero of="$ORIGIN" bs=1M oflag=direct status=none 2>/dev/null || true
    # With a dirty cache that is gone, the origin would be refused.
    rm -rf /tmp/ledger* /var/lib/flaz
    flaz create "$served" --force --discard-dirty --origin "$ORIGIN" --region-size 1M >/dev/null 2>&1
    touch "$serve_log"
    log_start=$(($(wc -l <"$serve_log") + 1))
    serve_disk
    start_writers "$device"
    sleep 3
    dd if="$ORIGIN" of="$SPARE" bs=1M count=64 oflag=direct status=none
}

# check WHERE: reads all blocks. Sets failed, the number of those that end with EIO, which only dirty ones may.
check() {
    local writer
    rm -f /tmp/checks
    for writer in $(seq "$writers"); do
        ledger.py check "$device" "/tmp/ledger$writer" eio >>/tmp/checks || fail "$1: blocks of writer $writer"
    done
    failed=$(sum failed /tmp/checks)
    echo "$1: $(sum checked /tmp/checks) blocks have their last version, $failed EIO"
    [ "$mode" = write-back ] || [ "$failed" -eq 0 ] || fail "reads fail in write-through"
}

# writers_end_well: no request has failed, in write-through.
writers_end_well() {
    stop_writers
    [ "$mode" = write-back ] || [ "$failed" -eq 0 ] || fail "$failed requests failed because of the SSD"
}

# end: also if the stop reports the SSD.
end() {
    flaz stop --force "$served" >/dev/null 2>&1 || true
    wait "$server" || true
}

# restart: with a good SSD. Reads all blocks, and ends.
restart() {
    good
    end
    serve_disk
    check "after a restart"
    end
}

# errors NAME TABLE...: reads or writes fail; everything is there when the SSD is good again.
errors() {
    begin "$1"
    shift
    flaky "$@"
    sleep 6
    log_says 'the cache device failed an operation'
    if [ "$mode" = write-through ]; then
        flaz status -v "$served" | grep 'is bypassed' >/dev/null || fail "flaz status does not say that the SSD failed"
        writers_end_well
        check "while the SSD fails"
    else
        good
        writers_end_well
    fi
    restart
    [ "$failed" -eq 0 ] || fail "$failed blocks cannot be read, though the SSD has lost nothing"
}

# damage NAME TABLE...: the checksums find what is damaged or missing.
damage() {
    begin "$1"
    shift
    flaky "$@"
    sleep 4
    writers_end_well
    check "on the bad SSD"
    found=$(report "['errors']['checksum_failures']")
    [ "$found" -gt 0 ] || fail "no checksum has failed"
    log_says 'found a damaged fragment'
    echo "$found checksum failures"
}

# killed_after_drop: the SSD drops writes, is good for a while, and flaz is killed.
killed_after_drop() {
    begin "writes are dropped, then flaz is killed"
    flaky 0 3600 drop_writes
    sleep 3
    good
    sleep 4
    writers_end_well
    kill_server
    flaz serve "$served" --ublk=disk --threads 2 --mode "$mode" --block-size 4096 >>"$serve_log" 2>&1 &
    server=$!
    starts=$((starts + 1))
    wait_for 60 started
    if kill -0 "$server" 2>/dev/null; then
        check "after the kill"
        end
    else
        starts=$((starts - 1))
        [ "$mode" = write-back ] || fail "refused in write-through: $(tail -n 3 "$serve_log")"
        echo "refused: $(tail -n 1 "$serve_log")"
        wait "$server" || true
    fi
}

mode=write-through
errors "the SSD fails and returns" 1 1
errors "reads fail" 0 3600 error_reads
errors "writes fail" 0 3600 error_writes
damage "reads are damaged" 0 3600 random_read_corrupt 500000000
restart
damage "writes are damaged" 0 3600 corrupt_bio_byte 2000 w 255 0
restart
damage "writes are dropped" 0 3600 drop_writes
restart

step "the check detects older blocks"
! ledger.py check "$SPARE" /tmp/ledger1 >/tmp/checks 2>&1 || fail "older blocks are not detected"
grep -q LOST /tmp/checks || fail "$(cat /tmp/checks)"

killed_after_drop
flaz detach "$served" >/dev/null 2>&1 || true

mode=write-back
errors "the SSD fails and returns" 2 1
errors "reads fail" 0 3600 error_reads
errors "writes fail" 0 3600 error_writes
damage "reads are damaged" 0 3600 random_read_corrupt 500000000
restart
damage "writes are damaged" 0 3600 corrupt_bio_byte 2000 w 255 0
restart
damage "writes are dropped" 0 3600 drop_writes
restart
killed_after_drop
! grep 'panicked' "$serve_log" || fail "the daemon panicked"
step "done"
