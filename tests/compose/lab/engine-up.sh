#!/usr/bin/env bash
# Gives a bare Debian machine a container engine of its own, without a container registry:
# Debian's docker.io, compose v2 from the next Debian release, and a base image made from Debian packages.
#
# usage: eval "$(engine-up.sh DIR)"     stop it with: engine-down.sh DIR
#
# Everything lives in DIR, the engine's socket too, so no other engine is touched. A second start in the same DIR finds
# the images of the first.
set -euo pipefail

dir=$(realpath -m "${1:?usage: engine-up.sh DIR}")
here=$(cd "$(dirname "$0")" && pwd)
base=python:3.11-slim-bookworm
export DOCKER_CONFIG=$dir/config DOCKER_HOST=unix://$dir/docker.sock

say() { echo "engine-up: $*" >&2; }

[ "$(id -u)" = 0 ] || { say "needs root: the engine sets up namespaces and a bridge"; exit 1; }
command -v apt-get >/dev/null || { say "needs a Debian machine: there is no apt-get here"; exit 1; }
if docker version >/dev/null 2>&1; then say "an engine runs in $dir already"; exit 1; fi
mkdir -p "$dir" "$DOCKER_CONFIG/cli-plugins"

if ! { command -v dockerd && command -v docker && command -v mmdebstrap && command -v iptables; } >/dev/null; then
  say "installing docker.io, iptables and mmdebstrap"
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends docker.io iptables mmdebstrap >/dev/null
fi
[ -x "$DOCKER_CONFIG/cli-plugins/docker-compose" ] || "$here/compose-plugin.sh" "$DOCKER_CONFIG/cli-plugins"

# What the engine changes outside DIR and does not put back by itself.
iptables -S FORWARD | head -1 >"$dir/forward-policy.before"
cat /proc/sys/net/ipv4/ip_forward >"$dir/ip_forward.before"

trap '"$here/engine-down.sh" "$dir"' EXIT # a start that fails leaves nothing running

# stdin, stdout and stderr are the log's, or a caller that reads our output would wait for the engine's end.
setsid dockerd --host "$DOCKER_HOST" --data-root "$dir/root" --exec-root "$dir/exec" --pidfile "$dir/pid" \
  </dev/null >"$dir/log" 2>&1 &
for _ in $(seq 1 150); do docker version >/dev/null 2>&1 && break; sleep 0.2; done
docker version >/dev/null 2>&1 || { say "the engine does not answer after 30 s; the end of its log:"; tail -5 "$dir/log" >&2; exit 1; }

if ! docker image inspect "$base" >/dev/null 2>&1; then
  say "making the base image $base from Debian packages"
  "$here/base-image.sh" "$base" >/dev/null
fi
trap - EXIT
echo "export DOCKER_CONFIG='$DOCKER_CONFIG' DOCKER_HOST='$DOCKER_HOST'"
