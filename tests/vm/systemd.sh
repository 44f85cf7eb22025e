#!/bin/bash
# The shipped unit under systemd: enable, start, restart warm, restart after a kill, stop.
# boot: --systemd
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

unit=flaz@disk.service
socket=/run/flaz/disk.sock

main_pid() { systemctl show --property MainPID --value "$unit"; }

step "$(systemctl --version | head -n 1), up $(cut -d ' ' -f 1 /proc/uptime) s"
cp /flaz/flaz /usr/bin/
cp /flaz/flaz@.service /etc/systemd/system/
mkdir /etc/flaz
printf '%s\n' "FLAZ_CACHE=$CACHE" "FLAZ_OPTIONS=--nbd unix:$socket --mode write-back" >/etc/flaz/disk.conf
flaz create "$CACHE" --origin "$ORIGIN" >/dev/null
systemctl daemon-reload
systemctl enable --quiet --now "$unit"
answers "$socket" >/dev/null || fail "the unit is active, but nothing listens on $socket"

step "restart"
systemctl restart "$unit"
answers "$socket" >/dev/null || fail "no answer after a restart"
started_warm "$CACHE" || fail "the start after a restart was cold"

step "kill"
killed=$(main_pid)
kill -KILL "$killed"
restarted() { [ "$(main_pid)" -ne 0 ] && [ "$(main_pid)" -ne "$killed" ] && answers "$socket"; }
wait_for 60 restarted
started_warm "$CACHE" || fail "the start after a kill was cold"

step "stop"
systemctl stop "$unit"
[ "$(systemctl show --property Result --value "$unit")" = success ] || fail "$(systemctl status "$unit")"
flaz check "$CACHE" >/dev/null || fail "flaz check found errors"
