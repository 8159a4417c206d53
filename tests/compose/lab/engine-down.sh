#!/usr/bin/env bash
# Stops the engine that engine-up.sh started in DIR and takes its rules and bridge off the machine. DIR stays.
# usage: engine-down.sh DIR
set -euo pipefail

dir=$(realpath -m "${1:?usage: engine-down.sh DIR}")
if [ -e "$dir/pid" ]; then
  pid=$(cat "$dir/pid")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 1 150); do [ -e "/proc/$pid" ] || break; sleep 0.2; done
  [ ! -e "/proc/$pid" ] || { echo "engine-down: engine $pid is still there 30 s after SIGTERM" >&2; exit 1; }
fi
ip link delete docker0 2>/dev/null || true
iptables-save | grep -v -e DOCKER -e docker0 | iptables-restore
read -ra policy <"$dir/forward-policy.before"
iptables "${policy[@]}"
cat "$dir/ip_forward.before" >/proc/sys/net/ipv4/ip_forward
rm "$dir"/*.before
