"""The structs, functions and constants of zero/_header.py are those of zero.h, by a C compiler."""

import ctypes as C
import re
import subprocess
from pathlib import Path

from zero import _abi, _header

path = Path(__file__).parents[2].joinpath("engine/include/zero/zero.h").resolve()
header = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
lines = [f'#include "{path}"']
structs = [kind for kind in vars(_header).values() if isinstance(kind, type) and issubclass(kind, _header.Struct)][1:]
for struct in structs:
    name = struct.__name__
    lines.append(f'_Static_assert(sizeof({name}) == {C.sizeof(struct)}, "size of {name}");')
    for member, kind in struct._fields_:
        field = getattr(struct, member)
        lines.append(f'_Static_assert(offsetof({name}, {member}) == {field.offset}, "{name}.{member}");')
        lines.append(f'_Static_assert(sizeof((({name} *)0)->{member}) == {field.size}, "{name}.{member}");')
        if kind in (C.c_char_p, C.c_double):  # what Python converts
            c = {C.c_char_p: "const char *", C.c_double: "double"}[kind]
            lines.append(f'_Static_assert(_Generic((({name} *)0)->{member}, {c}: 1, default: 0), "{name}.{member}");')
    assert len(struct._fields_) == len(re.findall(r"[,;]", re.sub(r"\([^)]*\)", "", re.search(rf"struct {name} {{(.*?)}}", header, re.DOTALL)[1])))
types = {C.c_int: "(int|zero_(?!engine|unit|handle|local)\\w+)", C.c_uint32: "uint32_t", C.c_uint64: "uint64_t|size_t"}
types |= {C.c_double: "double", C.c_float: "float", _header.Text: r"const char \*", C.c_char_p: r"const char \*", _header.Status: "zero_status"}
types |= {C.c_void_p: r"(?!const char \*\w).*(\*|\[\d+\])", None: "void"}
declared = dict(re.findall(r"\b(zero_\w+)\(([^()]*)\);", header))
for name, (result, kinds, flags) in _header.FUNCTIONS.items():
    parameters = [] if declared[name] == "void" else [re.sub(r"\s+", " ", p.strip()) for p in declared[name].split(",")]
    assert len(parameters) == len(kinds), name
    for parameter, kind in zip(parameters, kinds):
        of = re.sub(r"\w+(\[\d+\])?$", r"\1", parameter)
        expected = types.get(kind) or (r"zero_\w+_fn" if issubclass(kind, C._CFuncPtr) else r".*\*")
        assert re.fullmatch(expected, of.strip()), (name, parameter, kind)
    of = re.search(rf"^([\w ]*?\*?) ?\*?{name}\(", header, re.MULTILINE)[0].split("zero_" + name[5:])[0].strip()
    assert re.fullmatch(types[result], of), (name, of, result)
assert set(_header.FUNCTIONS) == set(declared)
for name, value in vars(_header).items():
    if isinstance(value, int):
        lines.append(f'_Static_assert({name} == {value}, "{name}");')
command = ["gcc", "-x", "c", "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-"]
subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True)
version = ".".join(re.search(rf"ZERO_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))
assert _abi.lib.zero_version() == version
print(f"{len(structs)} structs and {len(_header.FUNCTIONS)} functions are the header's, of version {version}")

try:  # a sentence may have a path that is not UTF-8
    _abi.lib.zero_engine_open(b"no\xffne.json", _header.zero_runtime())
except _abi.ZeroError as error:
    assert str(error).startswith("no\ufffdne.json: cannot be opened"), error
else:
    raise AssertionError("a file that is not there was read")
