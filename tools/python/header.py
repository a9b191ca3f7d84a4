"""header.py ZERO.H >_header.py: the functions, structs and constants of engine/zero.h for ctypes.

A function that returns zero_status takes its last `out` parameter as a result, if this is a struct, a handle or a number."""

import re
import sys
from pathlib import Path

SCALARS = {"int": "c_int", "int32_t": "c_int32", "uint32_t": "c_uint32", "uint64_t": "c_uint64", "size_t": "c_size_t"}
SCALARS |= {"float": "c_float", "double": "c_double"}
PROLOGUE = '''"""engine/zero.h, by tools/python/header.py."""

import ctypes as C
import os
from typing import Any


class Struct(C.Structure):
    """Begins with its size, if it may grow."""

    def __init__(self, **values: Any) -> None:
        size = {"struct_size": C.sizeof(self)} if self._fields_[0][0] == "struct_size" else {}
        super().__init__(**size, **values)


class Text(C.c_char_p):
    """A str, bytes or a path."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        return C.c_char_p.from_param(value if value is None else os.fsencode(value))


class Status(C.c_int):
    """Not 0: the function has failed."""


'''

text = re.sub(r"/\*.*?\*/|^#[^\n]*(\\\n[^\n]*)*", "", Path(sys.argv[1]).read_text(), flags=re.DOTALL | re.MULTILINE)
text = re.sub(r"\s+", " ", text)
structs: list[str] = []
callbacks = re.findall(r"typedef void \(\*(\w+)\)\((.*?)\);", text)


def kind(declaration: str, is_argument: bool) -> tuple[str, str]:
    """Name and type of `const char *name`, `uint64_t shape[ZERO_DIMS_MAX]`, `int (*interrupted)(void *user)`."""
    pointer = re.fullmatch(r"(\w+) \(\*(\w+)\)\((.*)\)", declaration)
    if pointer:
        return pointer[2], f"C.CFUNCTYPE({', '.join([result(pointer[1]), *arguments(pointer[3])])})"
    match = re.fullmatch(r"(const )?(?:struct )?(\w+) ((?:\*|const | )*)(\w*)(?:\[(\w+)\])?", declaration)
    assert match, declaration
    constant, base, stars, name, length = match[1], match[2], match[3].count("*"), match[4], match[5]
    if (constant, base, stars) == ("const ", "char", 1):
        of = "Text" if is_argument else "C.c_char_p"
    elif stars == 1 and base in structs:
        of = f"C.POINTER({base})"
    elif stars or (length and is_argument):
        return name, "C.c_void_p"
    else:
        of = base if base in dict(callbacks) else f"C.{SCALARS.get(base, 'c_int')}"
    return name, f"{of} * {length}" if length else of


def result(base: str) -> str:
    return "None" if base == "void" else kind(f"{base} result", False)[1]


def arguments(parameters: str) -> list[str]:
    return [] if parameters == "void" else [kind(p.strip(), True)[1] for p in parameters.split(",")]


def members(body: str) -> list[tuple[str, str]]:
    """Of a struct: `void *param, *grad` are two."""
    found = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        first, *more = [declaration] if "(" in declaration else declaration.split(",")
        base = re.match(r"(?:const )?\w+ ", first)
        found += [kind(d, False) for d in [first, *(f"{base[0]}{d.strip()}" for d in more if base)]]
    return found


def enumerators(body: str) -> list[str]:
    value, found = -1, []
    for name, given in re.findall(r"(\w+)(?: = (\d+))?(?:,|$)", body.strip()):
        value = int(given) if given else value + 1
        found.append(f"{name} = {value}")
    return found


lines = [line for body in re.findall(r"enum \w* ?\{([^(]*?)\}", text) for line in enumerators(body)]
for name, parameters in callbacks:
    lines.append(f"{name} = C.CFUNCTYPE({', '.join(['None', *arguments(parameters)])})".replace("Text", "C.c_char_p"))
for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text):
    lines += ["", "", f"class {name}(Struct):", "    _fields_ = [", *(f'        ("{m}", {k}),' for m, k in members(body)), "    ]"]
    structs.append(name)
lines += ["", "", "FUNCTIONS: dict[str, tuple[Any, list[Any], Any]] = {  # result, arguments, ctypes' parameter flags"]
for constant, base, stars, name, parameters in re.findall(r"(const )?(\w+) (\*?)(zero_\w+)\(([^()]*)\);", text):
    kinds, flags = arguments(parameters), []
    last = re.search(r"(\w+) (\*+)out\w*$", parameters)
    if base == "zero_status" and last and (last[1] in structs or last[2] == "**" or last[1] == "int"):
        flags = [((1,),) * (len(kinds) - 1) + ((2,),)]
        kinds[-1] = f"C.POINTER({last[1] if last[1] in structs else 'C.c_int' if last[1] == 'int' else 'C.c_void_p'})"
    of = "Status" if base == "zero_status" else kind(f"{constant}{base} {stars}result", False)[1] if base != "void" or stars else "None"
    lines.append(f'    "{name}": ({of}, [{", ".join(kinds)}], {flags}),')
sys.stdout.write(PROLOGUE + "\n".join([*lines, "}"]) + "\n")
