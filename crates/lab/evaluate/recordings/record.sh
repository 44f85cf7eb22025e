#!/bin/bash
# Records a load on ext4 with `flaz lab record`, for `flaz lab evaluate` (docs/lab-evaluation.md). Needs root, nbdfuse, losetup, and
# for its load postmark, or PostgreSQL and tpchgen-cli.
#
#   record.sh postmark|postmark-x4|tpch-q3|tpch-q11|tpch-q14 FILE.flaztrace.zst
#
# Variables, with their defaults:
#   FLAZ          the program (target/release/flaz)
#   FILES         PostMark: number of files, and of transactions, of all instances together (4000)
#   SCALE_FACTOR  TPC-H: scale factor (0.1; the recording of query 11 in this folder has 0.3)
#   MEMORY_MIB    memory of the load with its page cache, in MiB (PostMark: 16, of all instances together; TPC-H: 48)
set -euo pipefail

load=${1:?a load: postmark, postmark-x4, tpch-q3, tpch-q11 or tpch-q14}
output=$(realpath "${2:?the recording to write}")
flaz=$(realpath "${FLAZ:-$(dirname "$0")/../../../../target/release/flaz}")
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
loop='' record='' fuse=''
group=flaz-recording-$$

die() { echo "record.sh: $*" >&2; exit 1; }
need() { command -v "$1" > /dev/null || die "$1 is missing: install $2"; }

cleanup() {
    set +e
    mountpoint -q "$scratch/files" && umount "$scratch/files"
    [ -n "$loop" ] && losetup -d "$loop"
    [ -n "$fuse" ] && fusermount3 -u "$scratch/fuse" && wait "$fuse"
    [ -n "$record" ] && kill -TERM "$record" 2> /dev/null && wait "$record"
    rmdir "/sys/fs/cgroup/memory/$group" "/sys/fs/cgroup/$group" 2> /dev/null
    rm -rf "$scratch"
}
trap cleanup EXIT

# Runs a command in this much memory, page cache included (cgroups version 1 or 2).
limited() {
    local limit=$(( ${MEMORY_MIB:-$1} << 20 )) folder=/sys/fs/cgroup/$group file=memory.max
    shift
    [ -d /sys/fs/cgroup/memory ] && folder=/sys/fs/cgroup/memory/$group file=memory.limit_in_bytes
    mkdir -p "$folder"
    echo "$limit" > "$folder/$file"
    (echo "$BASHPID" > "$folder/cgroup.procs" && exec "$@")
}

attach() {
    loop=$(losetup --find --show "$@")
}

detach() {
    umount "$scratch/files"
    losetup -d "$loop"
    loop=''
}

# Makes the file system. What it needs before the load is not recorded.
prepare() {
    mkdir -p "$scratch/files" "$scratch/fuse"
    truncate -s "$1" "$scratch/disk.img"
    attach "$scratch/disk.img"
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
    mount "$loop" "$scratch/files"
    "${@:2}"
    detach
}

# Serves the file system to be recorded.
begin() {
    "$flaz" lab record "$scratch/disk.img" --nbd "unix:$scratch/nbd.sock" --output "$output" &
    record=$!
    for _ in $(seq 100); do [ -S "$scratch/nbd.sock" ] && break; sleep 0.1; done
    nbdfuse "$scratch/fuse/disk" --unix "$scratch/nbd.sock" &
    fuse=$!
    for _ in $(seq 100); do [ -s "$scratch/fuse/disk" ] && break; sleep 0.1; done
    attach --direct-io=on "$scratch/fuse/disk"
    mount "$loop" "$scratch/files"
}

end() {
    detach
    fusermount3 -u "$scratch/fuse"
    wait "$fuse" || true
    fuse=''
    kill -TERM "$record"
    wait "$record"
    record=''
}

# PostMark's own defaults for sizes and mix.
postmark_instance() {
    mkdir -p "$scratch/files/$1"
    printf '%s\n' "set location $scratch/files/$1" "set number $2" "set transactions $2" "set seed $3" 'run' 'quit' \
        > "$scratch/$1.pm"
}

postmark_instances() {
    local count=$1 pids=() number
    for number in $(seq "$count"); do
        limited 16 postmark "$scratch/pm$number.pm" > "$scratch/pm$number.out" &
        pids+=($!)
    done
    wait "${pids[@]}"
    sync -f "$scratch/files"
}

postgres() {
    setpriv --reuid postgres --regid postgres --clear-groups env PATH="$PATH" HOME="$scratch" "$@"
}

tpch_load() {
    local data=$scratch/files/db
    mkdir "$data"
    chown postgres "$data"
    chmod 755 "$scratch" "$scratch/files"
    mkdir "$scratch/run" "$scratch/tables"
    chown postgres "$scratch/run"
    tpchgen-cli --scale-factor "${SCALE_FACTOR:-0.1}" --output-dir "$scratch/tables" > /dev/null
    postgres initdb -D "$data" -A trust > /dev/null
    cat >> "$data/postgresql.conf" <<'SETTINGS'
shared_buffers = 8MB
work_mem = 2MB
fsync = off
autovacuum = off
max_parallel_workers_per_gather = 0
jit = off
listen_addresses = ''
SETTINGS
    server start
    postgres psql -q -h "$scratch/run" -d postgres -f "$here/tpch-schema.sql"
    local table
    for table in region nation supplier customer part partsupp orders lineitem; do
        sed 's/|$//' "$scratch/tables/$table.tbl" \
            | postgres psql -q -h "$scratch/run" -d postgres -c "copy $table from stdin with (delimiter '|')"
    done
    postgres psql -q -h "$scratch/run" -d postgres -f "$here/tpch-indexes.sql"
    server stop
}

server() {
    postgres pg_ctl -s -w -D "$scratch/files/db" -l "$scratch/run/log" -o "-k $scratch/run" "$1"
}

[ "$(id -u)" = 0 ] || die 'run it as root: it mounts a file system'
need nbdfuse libnbd-bin
need fusermount3 fuse3
case $load in
    postmark | postmark-x4)
        need postmark postmark
        count=1
        [ "$load" = postmark-x4 ] && count=4
        for number in $(seq "$count"); do
            postmark_instance "pm$number" $((${FILES:-4000} / count)) "$number"
        done
        prepare 1G true
        begin
        for number in $(seq "$count"); do mkdir -p "$scratch/files/pm$number"; done
        postmark_instances "$count"
        end
        ;;
    tpch-q3 | tpch-q11 | tpch-q14)
        PATH=$PATH:$(find /usr/lib/postgresql/*/bin -maxdepth 0 | tail -1)
        need tpchgen-cli 'it with cargo or pip: tpchgen-cli'
        need initdb postgresql
        prepare 2G tpch_load
        begin
        limited 48 setpriv --reuid postgres --regid postgres --clear-groups \
            env PATH="$PATH" pg_ctl -s -w -D "$scratch/files/db" -l "$scratch/run/log" -o "-k $scratch/run" start
        postgres psql -q -h "$scratch/run" -d postgres -f "$here/$load.sql" > /dev/null
        server stop
        end
        ;;
    *) die "$load: expected postmark, postmark-x4, tpch-q3, tpch-q11 or tpch-q14" ;;
esac
