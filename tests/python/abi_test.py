"""abi_test.py HEADER: the structs and functions of zero/_abi.py are those of zero.h, by a C compiler."""

import ctypes as C
import re
import subprocess
import sys
from pathlib import Path

from zero import _abi

header = Path(sys.argv[1]).read_text()
lines = [f'#include "{Path(sys.argv[1]).resolve()}"']
structs = [_abi.Slot, _abi.Runtime, _abi.Param, _abi.Plan, _abi.MemoryRow, _abi.StepInfo, _abi.Failure]
for struct in structs:
    name = struct.__doc__
    lines.append(f'_Static_assert(sizeof({name}) == {C.sizeof(struct)}, "size of {name}");')
    for member, *_ in struct._fields_:
        field = getattr(struct, member)
        lines.append(f'_Static_assert(offsetof({name}, {member}) == {field.offset}, "{name}.{member}");')
        lines.append(f'_Static_assert(sizeof((({name} *)0)->{member}) == {field.size}, "{name}.{member}");')
sizes = {"p": 8, "s": 8, "i": 4, "e": 4, "u": 4, "q": 8, "d": 8, "f": 4}
casts = {"p": "(void *)0", "s": "(const char *)0", "i": "(int)0", "u": "(uint32_t)0", "q": "(uint64_t)0", "d": "(double)0"}
for signature in _abi.SIGNATURES.split():
    name, result, arguments = signature.split(":")
    call = f"zero_{name}({', '.join(casts[a] for a in arguments)})"
    if result == "v":
        lines.append(f"void try_{name}(void) {{ {call}; }}")
        continue
    lines.append(f'_Static_assert(sizeof({call}) == {sizes[result]}, "result of {name}");')
    real = result in "df"
    kind = "(double)0.5" if real else "0"
    lines.append(f'_Static_assert(_Generic({call}, double: 1, float: 1, default: 0) == {int(real)}, "result of {name}, {kind}");')
    for i, a in enumerate(arguments):  # a real number where the header has none is an error of -Wfloat-conversion
        parameter = re.search(rf"\bzero_{name}\(([^;]*)\);", header)[1].split(",")[i]
        pointer = "*" in parameter or "_fn " in parameter or "out[" in parameter
        assert pointer == (a in "ps"), (name, i, a, parameter)
        assert (a == "s") <= ("char *" in parameter), (name, i, a, parameter)
        assert (a == "q") == ("uint64_t" in parameter and not pointer), (name, i, a, parameter)
        assert (a == "d") == ("double" in parameter and not pointer), (name, i, a, parameter)
names = "ZERO_TRAIN ZERO_EVAL ZERO_PARAM ZERO_FROZEN ZERO_NO_DECAY".split()
values = (_abi.TRAIN, _abi.EVAL, _abi.PARAM, _abi.FROZEN, _abi.NO_DECAY)
lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in zip(names, values)]
lines += [f'_Static_assert(ZERO_TIERS == {len(_abi.TIERS)} && ZERO_F32 == 0 && ZERO_BF16 == 1 && ZERO_F16 == 2, "kinds");']
command = ["gcc", "-x", "c", "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-"]
subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True)
version = ".".join(re.search(rf"ZERO_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))
assert _abi.lib.zero_version().decode() == version
print(f"{len(structs)} structs and {len(_abi.SIGNATURES.split())} functions are the header's, of version {version}")
