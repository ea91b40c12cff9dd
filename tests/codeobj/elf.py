"""Sections and symbols of code objects, which are ELF files of 64 bits, least byte first."""

import struct
from typing import NamedTuple

SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
HAS_CODE = 4  # SHF_EXECINSTR
FUNCTION = 2  # STT_FUNC


class Section(NamedTuple):
    at: int  # of its header in the file
    kind: int
    flags: int
    address: int
    offset: int  # of its content in the file
    size: int
    link: int

    def place(self, content, address, offset, size):
        """Writes another place of the content into its header."""
        struct.pack_into("<QQQ", content, self.at + 16, address, offset, size)


class Symbol(NamedTuple):
    at: int  # of its entry in the file
    name: str
    kind: int
    section: int  # 0: defined elsewhere
    value: int
    size: int

    def undefine(self, content):
        struct.pack_into("<H", content, self.at + 6, 0)


def sections(code):
    first, count = struct.unpack_from("<Q", code, 0x28)[0], struct.unpack_from("<H", code, 0x3C)[0]
    headers = range(first, first + 64 * count, 64)
    return [Section(at, *struct.unpack_from("<4xIQQQQI", code, at)) for at in headers]


def symbols(code):
    found, all_sections = [], sections(code)
    for section in all_sections:
        if section.kind not in SYMBOL_TABLES:
            continue
        for at in range(section.offset, section.offset + section.size, 24):
            name_at, info, index, value, size = struct.unpack_from("<IBxHQQ", code, at)
            begin = all_sections[section.link].offset + name_at
            name = code[begin : code.index(b"\0", begin)].decode()
            found.append(Symbol(at, name, info & 15, index, value, size))
    return found
