#!/usr/bin/env bash
# run.sh PYTHON COMMAND...: runs `PYTHON COMMAND...` on this machine if it has a verbs device, and otherwise in an emulated
# machine with two of them. Fails if no device can be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
  exec "$@"
fi
export RDMA_LAB=${RDMA_LAB:-$(cd "$here/../.." && pwd)/build/rdma-lab}
bash "$here/lab/setup.sh" "$RDMA_LAB"
RDMA_PASS="RDMA_ABORTS ${RDMA_PASS:-}" exec nice -n 10 bash "$here/lab/guest.sh" "$@"
