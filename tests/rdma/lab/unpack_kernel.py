"""unpack_kernel.py BZIMAGE ELF: the kernel of a boot image, so that no boot has to unpack it."""

from __future__ import annotations

import lzma
import struct
import sys
from pathlib import Path

SETUP_SECTORS_AT, PAYLOAD_AT = 0x1F1, 0x248
SECTOR_BYTES = 512


def main(image: Path, target: Path) -> None:
    data = image.read_bytes()
    start = ((data[SETUP_SECTORS_AT] or 4) + 1) * SECTOR_BYTES
    offset, size = struct.unpack_from("<II", data, PAYLOAD_AT)
    payload = data[start + offset : start + offset + size]
    if not payload.startswith(b"\xfd7zXZ\0"):
        raise SystemExit(f"the kernel in {image} is not packed with xz")
    target.write_bytes(lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
