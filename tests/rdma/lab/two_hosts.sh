#!/usr/bin/env bash
# Two hosts' worth of network on one machine: verbs devices rxa (10.78.0.1, on va) and rxb (10.78.0.2, on vb), whose
# packets really cross the wire from va to vb, so that netem and a link that goes down apply to them.
set -euo pipefail
ip link add va type veth peer name vb
for name in all default va vb; do
  folder=/proc/sys/net/ipv4/conf/$name
  echo 1 >"$folder/accept_local"
  echo 0 >"$folder/rp_filter"
  echo 1 >"$folder/arp_ignore"
  echo 2 >"$folder/arp_announce"
done
ip link set va mtu 9000 up
ip link set vb mtu 9000 up
ip addr add 10.78.0.1/32 dev va
ip addr add 10.78.0.2/32 dev vb
bash "$(dirname "$0")/routes.sh"
# What comes in by a device is local; what goes out of an address uses its own end of the wire; only then what is local.
ip rule add pref 10 iif va lookup local
ip rule add pref 11 iif vb lookup local
ip rule add pref 20 oif va lookup 101
ip rule add pref 21 oif vb lookup 102
ip rule add pref 30 from 10.78.0.1 to 10.78.0.2 lookup 101
ip rule add pref 31 from 10.78.0.2 to 10.78.0.1 lookup 102
ip rule add pref 100 lookup local
ip rule del pref 0
# The address comes first: a device that is made on an interface without one has its IPv4 GID nowhere.
rdma link add rxa type rxe netdev va
rdma link add rxb type rxe netdev vb
for device in rxa rxb; do
  [ -e "/sys/class/infiniband/$device" ] || { echo "two_hosts.sh: no verbs device $device was made" >&2; exit 1; }
done
