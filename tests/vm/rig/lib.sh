# shellcheck shell=bash
# Functions for scripts on the virtual machine: . /flaz/lib.sh

set -euo pipefail

step() { echo "--- $*"; }

fail() {
    echo "FAILED: $*"
    exit 1
}

# A command that fails is a failure of the script, with its place.
trap 'echo "FAILED: ${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND"' ERR
set -E

# wait_for SECONDS COMMAND...: polls until COMMAND succeeds; fails after SECONDS.
wait_for() {
    local deadline_s=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline_s" ] || fail "not within the limit: $*"
        sleep 0.1
    done
}

# answers SOCKET: whether an NBD server listens there.
answers() { nbdinfo --size "nbd+unix:///?socket=$1"; }

# started_warm CACHE: whether the running flaz kept the contents of the cache at its start.
started_warm() {
    flaz status "$1" --json |
        python3 -c 'import json, sys; sys.exit(not json.load(sys.stdin)["live"]["daemon"]["started_warm"])'
}

# refused TEXT COMMAND...: the command fails, and says TEXT.
refused() {
    local text=$1
    shift
    ! "$@" >/tmp/refused.log 2>&1 || fail "not refused: $*"
    grep -q -e "$text" /tmp/refused.log || fail "expected '$text' from '$*', got: $(cat /tmp/refused.log)"
}

# parts DEVICE: makes /dev/mapper/files, of $files_sectors, and /dev/mapper/blocks on it. unparts removes them.
files_sectors=$((256 * 2048))
parts() {
    local sectors
    sectors=$(blockdev --getsz "$1")
    dmsetup create files --table "0 $files_sectors linear $1 0"
    dmsetup create blocks --table "0 $((sectors - files_sectors)) linear $1 $files_sectors"
    udevadm settle
}
unparts() {
    udevadm settle
    dmsetup remove --retry files
    dmsetup remove --retry blocks
}

# Functions for a daemon with a block device, /dev/flaz/NAME. It serves $served, and its output is in $serve_log.
served=$CACHE
serve_log=/tmp/serve.log
server=
starts=0

# serve OPTION...: returns when the device is there.
serve() {
    flaz serve "$served" "$@" >>"$serve_log" 2>&1 &
    server=$!
    starts=$((starts + 1))
    wait_for 60 started
    kill -0 "$server" || fail "flaz serve: $(tail -n 5 "$serve_log")"
}
started() { [ "$(grep -c '^ready: /dev/flaz/' "$serve_log")" -ge "$starts" ] || ! kill -0 "$server"; }

# stop: also while the device is in use.
stop() {
    flaz stop --force "$served" >/dev/null
    wait_for_server
}

# wait_for_server: after the server was asked to end.
wait_for_server() {
    wait "$server" || fail "flaz serve ended with status $?: $(tail -n 5 "$serve_log")"
}

kill_server() {
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
}

# attach SOCKET: makes /dev/nbd0 a disk of the server. udev opens new and changed devices for a moment, and the kernel
# refuses to attach one that is open.
attach() {
    modprobe nbd
    udevadm settle
    nbd-client -unix "$1" /dev/nbd0 -block-size 4096 >/dev/null
    wait_for 10 attached
}
attached() { [ "$(blockdev --getsize64 /dev/nbd0)" -gt 0 ]; }

# detach: the kernel notices the end of the server late, and refuses to attach again before that. udev may still read what
# was written.
detach() {
    udevadm settle
    nbd-client -d /dev/nbd0 >/dev/null
    wait_for 30 detached
}
detached() { ! nbd-client -c /dev/nbd0; }

# Writers of blocks, $writers of them with $writer_blocks each, which check what they read: see ledger.py.
writers=2
writer_blocks=12000
writers_end=/tmp/writers-end
processes=()

# start_writers DEVICE: they continue the ledgers that there are.
start_writers() {
    local writer
    rm -f "$writers_end" /tmp/writes
    processes=()
    for writer in $(seq "$writers"); do
        ledger.py blocks "$1" $(((writer - 1) * writer_blocks)) "$writer_blocks" "/tmp/ledger$writer" "$writers_end" \
            >>/tmp/writes 2>&1 &
        processes+=("$!")
    done
}

# stop_writers: sets failed, the number of requests that ended with an error.
stop_writers() {
    local process
    touch "$writers_end"
    for process in "${processes[@]}"; do
        wait "$process" || fail "a writer: $(cat /tmp/writes)"
    done
    failed=$(sum failed /tmp/writes)
    echo "$(sum acknowledged /tmp/writes) writes acknowledged, $(sum checked /tmp/writes) blocks checked, $failed requests failed"
}

# verify_blocks DEVICE: every block of the ledgers is there.
verify_blocks() {
    local writer
    for writer in $(seq "$writers"); do
        ledger.py check "$1" "/tmp/ledger$writer" >>/tmp/checks || fail "blocks of writer $writer on $1"
    done
}

# sum WORD FILE: of the figures before WORD, in the output of ledger.py.
sum() { awk -v word="$1" '{ for (i = 2; i <= NF; i++) if ($i ~ "^" word) total += $(i - 1) } END { print total + 0 }' "$2"; }
