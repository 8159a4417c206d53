#!/usr/bin/env bash
# setup.sh DIR: everything guest.sh needs, into DIR (about 20 s, needs root and Debian's package index): QEMU, Debian's
# own kernel with its software RDMA device (rdma_rxe), a small first root, and Debian's pyverbs. A second run is quick.
set -euo pipefail
lab=$(realpath -m "${1:?folder to set up}")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$lab/run"
cd "$lab"
if [ ready -nt "$here/setup.sh" ] && [ ready -nt "$here/init" ] && [ ready -nt "$here/unpack_kernel.py" ]; then
  exit 0
fi

apt-get update -qq
apt-get install -qq -y --no-install-recommends \
  qemu-system-x86 busybox-static kmod iproute2 rdma-core ibverbs-providers ibverbs-utils libibverbs1 librdmacm1 \
  libpython3.11 perftest xz-utils >/dev/null

# The kernel package is unpacked, not installed: this machine goes on with its own.
package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -1)
release=${package#linux-image-}
if [ ! -d kernel ]; then
  apt-get download -qq "$package"
  dpkg -x linux-image-*.deb kernel
  rm linux-image-*.deb
fi
depmod -b kernel "$release"
python3 "$here/unpack_kernel.py" "kernel/boot/vmlinuz-$release" vmlinux

if [ ! -d pyverbs ]; then
  apt-get download -qq python3-pyverbs
  dpkg -x python3-pyverbs_*.deb pyverbs
  rm python3-pyverbs_*.deb
fi

# First root: busybox, the modules in the order in which they load, and `init`, which mounts the real root.
rm -rf root
mkdir -p root/bin root/modules root/proc root/sys root/dev root/run root/lower root/upper root/root
cp "$(command -v busybox)" root/bin/busybox
for name in sh mount mkdir insmod cat echo ln; do ln -s busybox "root/bin/$name"; done
cp "$here/init" root/init
chmod 755 root/init
for module in virtio_pci virtio_console 9pnet_virtio 9p overlay veth sch_netem crc32_generic crc32c_generic \
  ib_core ib_uverbs ib_umad rdma_cm rdma_ucm rdma_rxe; do
  modprobe -d kernel -S "$release" --show-depends "$module" | while read -r verb file _; do
    name=$(basename "$file")
    [ "$verb" = insmod ] || continue
    if ! grep -qx "$name" root/modules/order 2>/dev/null; then
      cp "$file" "root/modules/$name"
      echo "$name" >>root/modules/order
    fi
  done
done
(cd root && find . | busybox cpio -o -H newc 2>/dev/null) >initrd
touch ready
