"""Descriptors over Unix sockets. Python 3.11's `recv_fds` drops its flags, so its descriptors would be inherited."""

from __future__ import annotations

import array
import os
import socket


def receive_with_descriptor(connected: socket.socket, size: int) -> tuple[bytes, int | None]:
    """At most `size` bytes and the descriptor that came with them, which is the caller's and is not inherited."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(descriptors.itemsize)
    data, ancillary, _, _ = connected.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    for surplus in descriptors[1:]:
        os.close(surplus)
    return data, descriptors[0] if descriptors else None
