# shellcheck shell=bash
# Counters of the disks, and the requests of the clients.

counter_names=(origin_reads origin_read_sectors origin_writes origin_write_sectors
    ssd_reads ssd_read_sectors ssd_writes ssd_write_sectors metadata_write_sectors)

# counters: the values of counter_names since the boot.
counters() {
    local slow fast other
    read -r -a slow <"/sys/block/${ORIGIN##*/}/stat"
    read -r -a fast <"/sys/block/${CACHE##*/}/stat"
    read -r -a other <"/sys/block/${SPARE##*/}/stat"
    echo "${slow[0]} ${slow[2]} ${slow[4]} ${slow[6]} ${fast[0]} ${fast[2]} ${fast[4]} ${fast[6]} ${other[6]}"
}

# settle: waits until the disks are idle for a second. What goes on for longer than the limit goes on for ever.
settle() {
    local deadline_s=$((SECONDS + 20)) before after
    after=$(counters)
    while [ "$SECONDS" -lt "$deadline_s" ]; do
        before=$after
        sleep 1
        after=$(counters)
        [ "$before" != "$after" ] || return 0
    done
}

# More members of the JSON lines: ",NAME:VALUE...".
extra=

# counted LABEL COMMAND...: runs COMMAND, waits for the work that it caused, and prints a line for the driver. The time is that
# of COMMAND, or what it sets elapsed_ms to.
counted() {
    local label=$1 before after from_ms to_ms elapsed_ms='' i line
    shift
    read -r -a before <<<"$(counters)"
    from_ms=$(date +%s%3N)
    "$@"
    to_ms=$(date +%s%3N)
    : "${elapsed_ms:=$((to_ms - from_ms))}"
    settle
    read -r -a after <<<"$(counters)"
    line="{\"system\":\"$system\",\"mode\":\"$mode\",\"ssd_mib\":$ssd_mib,\"working_mib\":$working_mib"
    line+=",\"saved_pct\":$SAVED_PCT,\"seed\":$seed"
    line+=",\"phase\":\"$label\",\"requests\":$requests_done,\"elapsed_ms\":$elapsed_ms$extra"
    for i in "${!counter_names[@]}"; do
        line+=",\"${counter_names[i]}\":$((after[i] - before[i]))"
    done
    echo "peers: $line}"
}

# requests KIND DEVICE COUNT SEED [DEPTH]: direct requests of 4 KiB, zipf over the working set; KIND is zipf or mixed. Sets
# requests_done and elapsed_ms.
requests() {
    local options=(--rw=randread)
    [ "$1" = zipf ] || options=(--rw=randrw --rwmixread=70 --refill_buffers
        --buffer_compress_percentage="$SAVED_PCT" --buffer_compress_chunk=512)
    fio --eta=never --name=requests --filename="$2" --direct=1 --ioengine=io_uring --iodepth="${5:-16}" --bs=4k \
        --size="${working_mib}M" --io_size=$(($3 * 4096)) --random_distribution=zipf:0.9:0.3 --randrepeat=0 --randseed="$4" "${options[@]}" \
        --output-format=json --output=/tmp/fio.json || fail "fio: $(tail -n 5 /tmp/fio.json)"
    # shellcheck disable=SC2034 # elapsed_ms is of counted
    read -r requests_done elapsed_ms <<<"$(python3 -c '
import json
text = open("/tmp/fio.json").read()
job = json.loads(text[text.index("{"):])["jobs"][0]
print(job["read"]["total_ios"] + job["write"]["total_ios"], job["job_runtime"])')"
}

# scan DEVICE: reads the working set once in order.
scan() {
    fio --eta=never --name=scan --filename="$1" --direct=1 --ioengine=io_uring --iodepth=4 --bs=128k --rw=read \
        --size="${working_mib}M" --output=/tmp/fio.out || fail "fio: $(tail -n 5 /tmp/fio.out)"
    requests_done=$((working_mib * 8))
}

# fill: writes random data, of which SAVED_PCT % can be saved, to the whole origin.
fill() {
    fio --eta=never --name=fill --filename="$ORIGIN" --direct=1 --ioengine=io_uring --iodepth=4 --bs=256k --rw=write \
        --size="$(blockdev --getsize64 "$ORIGIN")" --refill_buffers --buffer_compress_percentage="$SAVED_PCT" \
        --buffer_compress_chunk=512 --randrepeat=0 --randseed=4711 --output=/tmp/fio.out ||
        fail "fio: $(tail -n 5 /tmp/fio.out)"
}

# saved: the percentage that zlib saves of 4 KiB blocks of the origin: a check of fill.
saved() {
    python3 - "$ORIGIN" "$(blockdev --getsize64 "$ORIGIN")" <<'PYTHON'
import sys, zlib
size = kept = 0
with open(sys.argv[1], "rb") as disk:
    for place in range(256):
        disk.seek(int(sys.argv[2]) // 256 // 4096 * place * 4096)
        block = disk.read(4096)
        size += len(block)
        kept += min(len(block), len(zlib.compress(block, 1)))
print(f"{100 * (1 - kept / size):.1f}")
PYTHON
}
