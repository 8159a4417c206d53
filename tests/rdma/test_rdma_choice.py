"""What a mover takes of what the kernel shows, and what it says when there is nothing to take. Needs no device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mover.doctor import find_lacks
from mover.settings import MoverSettings
from mover.transports.rdma import sysfs
from mover.transports.rdma.choice import pick_gid, pick_port
from mover.transports.rdma.config import RdmaConfig, retransmit_floor_s
from worldline.errors import Unavailable

LINK_LOCAL = "fe80:0000:0000:0000:0202:c9ff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a4e:0001"


def make_port(
    root: Path, device: str, number: int = 1, *, state: str = "4: ACTIVE", gids: tuple[tuple[str, str], ...] = ()
) -> None:
    """A port as sysfs shows it; `gids` are (GID, type)."""
    port = root / device / "ports" / str(number)
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    (port / "state").write_text(state + "\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    (port / "link_layer").write_text("Ethernet\n")
    for index, (gid, kind) in enumerate(gids):
        (port / "gids" / str(index)).write_text(gid + "\n")
        (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
        (port / "gid_attrs" / "ndevs" / str(index)).write_text("eth0\n")


def test_roce_v2_of_the_ipv4_address_is_taken(tmp_path: Path) -> None:
    gids = ((LINK_LOCAL, "IB/RoCE v1"), (LINK_LOCAL, "RoCE v2"), (IPV4, "IB/RoCE v1"), (IPV4, "RoCE v2"))
    make_port(tmp_path, "mlx5_0", gids=gids)
    port = pick_port(RdmaConfig(), tmp_path)
    assert pick_gid(RdmaConfig(), port) == 3
    assert pick_gid(RdmaConfig(gid_index=1), port) == 1
    with pytest.raises(Unavailable, match="has no GID 9"):
        pick_gid(RdmaConfig(gid_index=9), port)


def test_a_port_without_roce_v2_is_refused(tmp_path: Path) -> None:
    make_port(tmp_path, "mlx5_0", gids=((LINK_LOCAL, "IB/RoCE v1"),))
    with pytest.raises(Unavailable, match="give its interface an IPv4 address"):
        pick_gid(RdmaConfig(), pick_port(RdmaConfig(), tmp_path))


def test_the_first_active_port_is_taken(tmp_path: Path) -> None:
    make_port(tmp_path, "mlx5_0", state="1: DOWN", gids=((IPV4, "RoCE v2"),))
    make_port(tmp_path, "mlx5_1", gids=((IPV4, "RoCE v2"),))
    assert pick_port(RdmaConfig(), tmp_path).device == "mlx5_1"
    with pytest.raises(Unavailable) as down:
        pick_port(RdmaConfig(device="mlx5_0"), tmp_path)
    assert down.value.reason == "RDMA_PORT_DOWN"


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no verbs device"):
        pick_port(RdmaConfig(), tmp_path)
    make_port(tmp_path, "mlx5_0", gids=((IPV4, "RoCE v2"),))
    with pytest.raises(Unavailable, match="'mlx5_9'; there are mlx5_0"):
        pick_port(RdmaConfig(device="mlx5_9"), tmp_path)


def test_the_doctor_names_what_mends(tmp_path: Path) -> None:
    assert "rdma link add" in find_lacks([], -1)[0].mend
    make_port(tmp_path, "mlx5_0", state="1: DOWN", gids=((IPV4, "RoCE v2"),))
    lacks = find_lacks(list(sysfs.ports("mlx5_0", tmp_path)), 8 << 20)
    assert "ip link set eth0 up" in [lack.mend for lack in lacks]
    assert any("memlock" in lack.what for lack in lacks)


def test_the_settings_reach_the_transport(tmp_path: Path) -> None:
    settings = MoverSettings(
        mover_id="a", regions_dir=tmp_path, transports="tcp", rdma_timeout_exponent=10, rdma_retry_count=3
    )
    assert settings.plane.rdma == RdmaConfig(timeout_exponent=10, retry_count=3)
    assert retransmit_floor_s(10) == pytest.approx(2 * 4.096e-6 * 1024)


def test_a_mover_that_must_have_rdma_refuses_to_start_without(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mover", "--mover-id", "a", "--regions-dir", str(tmp_path)]
    ended = subprocess.run(
        [*command, "--transports", "rdma", "--rdma-device", "none0"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode != 0
    assert not ended.stdout
    assert "verbs device" in ended.stderr.splitlines()[-1]
