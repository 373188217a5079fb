"""Generates a program that runs another one with fixed first arguments in any root. Pure.

The `box-guest` command must work in any image. An image may have no shell for a script and no C
library for a linked program. The loader needs more arguments than a `#!` line can pass. So the
command is a static ELF file of about 300 bytes that only calls `execve`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BASE = 0x400000
"""Address of the mapped file. Addresses stay below 2^31, as `push` requires."""
_ELF_HEADER, _PROGRAM_HEADER = 64, 56
_X86_64 = 62

# At entry the stack holds argc, argv[0..argc-1], NULL, environment. Dropping argc and argv[0] and
# pushing the fixed arguments leaves the new argv in place in front of the caller's arguments.
_ENTER = bytes.fromhex(
    "488b3c24"  # mov rdi, [rsp]             argc
    "488d54fc10"  # lea rdx, [rsp+rdi*8+16]  environment
    "4883c410"  # add rsp, 16
)
_PUSH = b"\x68"  # push imm32
_EXECUTE = bytes.fromhex(
    "488b3c24"  # mov rdi, [rsp]             path: the first argument
    "4889e6"  # mov rsi, rsp                 argv
    "6a3b58"  # push 59; pop rax             execve
    "0f05"  # syscall
    "bf7f000000"  # mov edi, 127             only after a failure
    "b83c000000"  # mov eax, 60              exit
    "0f05"  # syscall
)


def launcher(arguments: Sequence[str]) -> bytes:
    """Return an x86-64 Linux program that executes `arguments`, followed by its own arguments.

    The program exits with status 127 if `arguments[0]` cannot be executed.
    """
    texts = [argument.encode() + b"\0" for argument in arguments]
    pushes = len(texts) * (len(_PUSH) + 4)
    first = _ELF_HEADER + _PROGRAM_HEADER + len(_ENTER) + pushes + len(_EXECUTE)
    addresses: list[int] = []
    for text in texts:
        addresses.append(_BASE + first)
        first += len(text)
    code = (
        _ENTER
        + b"".join(_PUSH + struct.pack("<I", address) for address in reversed(addresses))
        + _EXECUTE
    )
    return _headers(first) + code + b"".join(texts)


def _headers(size: int) -> bytes:
    entry = _BASE + _ELF_HEADER + _PROGRAM_HEADER
    identification = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    kind = struct.pack("<HHI", 2, _X86_64, 1)
    offsets = struct.pack("<QQQI", entry, _ELF_HEADER, 0, 0)
    sizes = struct.pack("<HHHHHH", _ELF_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0)
    header = identification + kind + offsets + sizes
    readable_executable = 5
    loaded = struct.pack("<IIQQQQQQ", 1, readable_executable, 0, _BASE, _BASE, size, size, 0x1000)
    return header + loaded
