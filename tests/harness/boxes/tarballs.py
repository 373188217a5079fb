"""Archives for tests: `Tarball` writes good, odd and malicious entries one by one."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self


class Tarball:
    """A tar archive in memory. Every method adds one entry and returns the archive."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)

    def file(self, name: str, content: bytes = b"", **fields: object) -> Self:
        """Add a regular file; `fields` are those of TarInfo, here and below."""
        return self._add(name, tarfile.REGTYPE, content, **fields)

    def directory(self, name: str, **fields: object) -> Self:
        """Add a directory."""
        fields.setdefault("mode", 0o755)
        return self._add(name, tarfile.DIRTYPE, b"", **fields)

    def symlink(self, name: str, target: str) -> Self:
        """Add a symbolic link."""
        return self._add(name, tarfile.SYMTYPE, linkname=target)

    def link(self, name: str, target: str) -> Self:
        """Add a hard link to an entry."""
        return self._add(name, tarfile.LNKTYPE, linkname=target)

    def device(self, name: str, kind: bytes = tarfile.CHRTYPE) -> Self:
        """Add a device node of the host's memory or its first disk."""
        return self._add(name, kind, devmajor=1, devminor=1)

    def fifo(self, name: str) -> Self:
        """Add a named pipe."""
        return self._add(name, tarfile.FIFOTYPE)

    def system(self) -> Self:
        """Add an empty /bin/sh, which makes the archive the root of a system."""
        return self.directory("bin").file("bin/sh", b"#!", mode=0o755)

    def data(self) -> bytes:
        """Return the bytes of the archive."""
        self._tar.close()
        return self._buffer.getvalue()

    def write(self, path: Path) -> Path:
        """Write the archive to a file."""
        path.write_bytes(self.data())
        return path

    def _add(
        self,
        name: str,
        kind: bytes,
        content: bytes = b"",
        **fields: object,
    ) -> Self:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        entry.size = len(content)
        for key, value in fields.items():
            setattr(entry, key, value)
        self._tar.addfile(entry, io.BytesIO(content))
        return self


def with_size(data: bytes, position: int, size: int) -> bytes:
    """Return the archive with another size in the header at byte `position` and a valid
    checksum."""
    header = bytearray(data[position : position + 512])
    header[124:136] = b"\x80" + size.to_bytes(11, "big") if size >= 8**11 else b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:position] + bytes(header) + data[position + 512 :]
