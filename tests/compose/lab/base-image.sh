#!/usr/bin/env bash
# Makes a local image under the name of the Dockerfile's base, from Debian packages: the same Debian and Python release,
# not the same bytes. The machine's certificate bundle goes in, because a build behind a proxy needs it for PyPI.
# usage: base-image.sh NAME
set -euo pipefail

name=${1:?usage: base-image.sh NAME}
certificates=/etc/ssl/certs/ca-certificates.crt
mmdebstrap --quiet --mode=root --variant=minbase --components=main \
  --include=ca-certificates,netbase,python3,python3-pip,python3-venv,tzdata \
  --aptopt='Acquire::Languages "none"' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -f "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED' \
  --customize-hook='for as in python python3 python3.11; do ln -s /usr/bin/python3.11 "$1/usr/local/bin/$as"; done' \
  --customize-hook='for as in pip pip3; do ln -s /usr/bin/pip3 "$1/usr/local/bin/$as"; done' \
  --customize-hook="copy-in $certificates /etc/ssl/certs" \
  bookworm - |
  docker import \
    -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
    -c "ENV SSL_CERT_FILE=$certificates PIP_CERT=$certificates" \
    -c 'CMD ["python3"]' - "$name"
