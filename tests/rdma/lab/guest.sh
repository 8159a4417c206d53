#!/usr/bin/env bash
# guest.sh COMMAND...: run a command in an emulated machine that has verbs devices (see two_hosts.sh). Its root is this
# machine's, read-only under a layer in memory; what it writes to /exchange/out comes back into $RDMA_LAB/out.
# Exits with the command's status; 125: it never ran.
#   RDMA_LAB (folder of setup.sh)  RDMA_MEMORY=8G  RDMA_CPUS=2  RDMA_LIMIT_S=840  RDMA_PASS="NAMES of variables"
set -uo pipefail
lab=${RDMA_LAB:?folder that setup.sh has set up}
here=$(cd "$(dirname "$0")" && pwd)
run=$(mktemp -d "$lab/run/XXXXXX")
mkdir -p "$run/out"
{
  echo '#!/bin/bash'
  for name in PATH HOME LANG LC_ALL ${RDMA_PASS:-}; do
    [ -n "${!name+x}" ] && printf 'export %s=%q\n' "$name" "${!name}"
  done
  printf 'export PYTHONPATH=%q WORLDLINE_LAB=1\n' "$lab/pyverbs/usr/lib/python3/dist-packages"
  echo 'stty -F /dev/hvc0 -onlcr; ip link set lo up; ulimit -l unlimited'
  printf 'bash %q || { echo "guest.sh: no verbs devices could be made, nothing was run"; exit; }\n' "$here/two_hosts.sh"
  printf 'cd %q\n' "$PWD"
  printf '%q ' "$@"
  echo
  echo 'echo $? >/exchange/status'
} >"$run/command"
timeout --foreground "${RDMA_LIMIT_S:-1500}" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
  -machine q35 -accel tcg,thread=multi -cpu max -m "${RDMA_MEMORY:-8G}" -smp "${RDMA_CPUS:-2}" -nic none \
  -kernel "$lab/vmlinux" -initrd "$lab/initrd" \
  -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off init_on_alloc=0" \
  -serial "file:$run/console" \
  -device virtio-serial-pci -chardev stdio,id=out,signal=off -device virtconsole,chardev=out \
  -fsdev local,id=machine,path=/,security_model=none,readonly=on,multidevs=remap \
  -device virtio-9p-pci,fsdev=machine,mount_tag=machine \
  -fsdev "local,id=exchange,path=$run,security_model=none" -device virtio-9p-pci,fsdev=exchange,mount_tag=exchange \
  </dev/null
ended=$?
status=125
[ -s "$run/status" ] && status=$(cat "$run/status")
if [ "$status" = 125 ]; then
  echo "guest.sh: the command gave no status (emulator: $ended); the guest's console ends:" >&2
  tail -20 "$run/console" >&2
fi
rm -rf "$lab/out"
mv "$run/out" "$lab/out"
rm -rf "$run"
exit "$status"
