"""The machine code inside a library: which GPU architectures it is for, and how large each kernel is.

nvcc embeds one ELF image (cubin) per architecture; built without compression, it lies in the library as it is. Every
kernel has a section ``.text.<mangled name>``, whose size is that of its instructions (SASS). Numbers of the format: the
ELF specification, and for the CUDA machine, its flags and its two ABIs LLVM's ``llvm/BinaryFormat/ELF.h``. A suffix of
an architecture (``sm_90a``) is not told: nvcc 13.0 writes the same header with and without it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_EM_CUDA = 190
_ABI_OF_CUDA_13 = 8
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_TEXT = ".text."


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, such as 90 for ``sm_90``: bytes of instructions by mangled kernel name."""

    architecture: int
    sass_bytes: dict[str, int]


def find_cubins(library: Path) -> list[Cubin]:
    """Return the uncompressed cubins in a file, in the order they lie there."""
    image = library.read_bytes()
    return [cubin for start in _starts(image) if (cubin := _read(image, start)) is not None]


def _starts(image: bytes) -> Iterator[int]:
    at = image.find(_MAGIC)
    while at >= 0:
        yield at
        at = image.find(_MAGIC, at + 1)


def _read(image: bytes, start: int) -> Cubin | None:
    """Return the cubin at an offset; None for an ELF file of another machine, or for bytes that only look like one."""
    if start + _HEADER.size > len(image):
        return None
    identity, _, machine, _, _, _, table, flags, _, _, _, size, count, names = _HEADER.unpack_from(image, start)
    end = start + table + count * size
    if machine != _EM_CUDA or size != _SECTION.size or names >= count or end > len(image):
        return None
    sections = list(_SECTION.iter_unpack(image[start + table : end]))
    _, _, _, _, names_at, names_size, *_ = sections[names]
    text = image[start + names_at : start + names_at + names_size]
    sizes = {}
    for name_at, _, _, _, _, section_size, *_ in sections:
        name = text[name_at : text.find(b"\0", name_at)].decode("ascii", "replace")
        if name.startswith(_TEXT):
            sizes[name.removeprefix(_TEXT)] = section_size
    # the second byte of the flags since CUDA 13, the first before
    return Cubin((flags >> 8 if identity[8] >= _ABI_OF_CUDA_13 else flags) & 0xFF, sizes)
