#!/usr/bin/env bash
# Puts compose v2 and buildx into PLUGIN_DIR. Debian 12 has neither; Debian 13's packages hold Go binaries that run on it.
# usage: compose-plugin.sh PLUGIN_DIR
set -euo pipefail

plugins=${1:?usage: compose-plugin.sh PLUGIN_DIR}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial,debs}

# Its own apt world: the machine's sources, lists and packages stay as they are.
cat >"$work/sources/next.sources" <<SOURCES
Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources"
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update
(cd "$work/debs" && "${apt[@]}" download docker-compose docker-buildx)
for package in "$work"/debs/*.deb; do dpkg-deb --extract "$package" "$work/extracted"; done
install -d "$plugins"
install -m 755 "$work"/extracted/usr/libexec/docker/cli-plugins/* "$plugins/"
