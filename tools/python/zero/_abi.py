"""The C interface, engine/zero.h, by ctypes. tests/python/abi_test.sh compares structs and signatures with the header."""

import ctypes as C
import os
import re
from pathlib import Path
from typing import Any

import torch

KINDS: dict[str, Any] = {"p": C.c_void_p, "s": C.c_char_p, "i": C.c_int, "u": C.c_uint32, "q": C.c_uint64, "v": None}
KINDS |= {"d": C.c_double, "f": C.c_float, "n": C.c_size_t, "q3": C.c_uint64 * 3, "q8": C.c_uint64 * 8, "d8": C.c_double * 8}


def _members(text: str) -> Any:
    """Of lines like "p:first,second": a kind, and the members of this kind."""
    return [(name, KINDS[kind]) for kind, names in (part.split(":") for part in text.split()) for name in names.split(",")]


class Slot(C.Structure):
    """zero_slot"""

    _fields_ = _members("p:param,grad i:add")


class Sized(C.Structure):
    """A struct that begins with its size."""

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=C.sizeof(self), **values)


class Runtime(Sized):
    """zero_runtime"""

    _fields_ = _members("""n:struct_size p:local u:local_rank p:mpi_comm u:threads p:log,log_user s:model q:total_steps
        u:plan_ranks,plan_node_ranks i:plan_processes,cuda p:cuda_stream,device i:discard_shadow p:interrupted,interrupted_user
        u:rank,size s:address u:port i:cuda_default_stream s:secret""")


class Param(Sized):
    """zero_param"""

    _fields_ = _members("""n:struct_size s:name u:dims,flags s:tied_to p:slot,spans u:span_count,group p:user q8:shape
        p:values,param_pointer,grad_pointer q:pointer_offset s:tensor""")


class Plan(Sized):
    """zero_plan"""

    _fields_ = _members("""n:struct_size q:params,params_padded,param_bytes,grad_bytes,state_bytes,gathered_bytes,lasting_bytes
        q:staging_bytes,reserved_bytes,resident_state_bytes,drive_read_bytes,drive_write_bytes d:drive_life_steps
        q:master_bytes q3:bytes""")


class MemoryRow(Sized):
    """zero_memory_row"""

    _fields_ = _members("n:struct_size i:tier s:name q:planned,measured")


class StepInfo(Sized):
    """zero_step_info"""

    _fields_ = _members("""n:struct_size q:step d:grad_norm,lr i:skipped q:skipped_total d:loss_scale u:groups d:beta1
        s:overflow_unit d8:group_lr""")


class Failure(Sized):
    """zero_failure"""

    _fields_ = _members("n:struct_size i:code,rank q:step s:call,unit,sentence")


FILL = C.CFUNCTYPE(None, C.c_void_p, C.c_char_p, C.c_uint64, C.c_uint64, C.c_void_p)
LOG = C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_char_p)
FROZEN = 1
TRAIN, EVAL = 0, 1
PARAM = 0
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TIERS = ("device", "cpu", "nvme")

# name:result:arguments
SIGNATURES = """
    version:s: last_failure:i:p status_name:s:i engine_open:i:spp engine_destroy:v:p engine_rank:u:p engine_size:u:p
    engine_micro_batch:q:p engine_accumulation_steps:q:p engine_train_batch:q:p engine_seed:q:p engine_setting:s:ps
    engine_dtype:i:p engine_cuda:i:pp engine_free_order:i:p engine_add_unit:i:psp unit_add_param:i:pp unit_param:p:pu
    unit_hold:i:p param_addresses:i:pp engine_trace:i:pqq engine_commit:i:pp engine_fill:i:ppp engine_memory:i:pup
    micro_begin:i:pi micro_resume:i:p micro_cancel:i:p forward_begin:i:p forward_end:i:p backward_begin:i:p
    backward_end:i:p unit_give_grads:i:pp engine_step:i:pp engine_flush:i:p engine_loss_scale:f:p engine_set_lr:i:pid
    param_get:i:pipqq param_put:i:pipqq engine_hash:i:pp engine_save:i:ps engine_save_wait:i:p engine_load:i:ps
    engine_load_weights:i:ps engine_set_note:i:pss engine_note:s:ps engine_steps:q:p engine_write_trace:i:ps
"""


class ZeroError(RuntimeError):
    """A failure of the engine. `code` is its name ("ZERO_E_PEER"); `rank`, `unit` and `call` say where, if known."""

    def __init__(self, sentence: str, code: str = "ZERO_E_ORDER", rank: int = -1, unit: str = "", call: str = "") -> None:
        super().__init__(sentence)
        self.code, self.rank, self.unit, self.call = code, rank, unit, call


def library_path() -> str:
    """$ZERO_LIB, or the library in this package, or the system's."""
    bundled = Path(__file__).with_name("libzero.so")
    return os.environ.get("ZERO_LIB") or (str(bundled) if bundled.exists() else "libzero.so.0")


def openmp_libraries() -> list[str]:
    """The OpenMP libraries of this process. There must be one, torch's: two would start twice the threads."""
    maps = Path("/proc/self/maps").read_text()
    return sorted(set(re.findall(r"/\S*/lib(?:gomp|iomp5|omp)[-.]\S*", maps)))


def _load() -> Any:
    for path in openmp_libraries():  # torch has loaded it; the engine's library finds its functions there
        C.CDLL(path, C.RTLD_GLOBAL)
    library = C.CDLL(library_path())
    for signature in SIGNATURES.split():
        name, result, arguments = signature.split(":")
        function = getattr(library, "zero_" + name)
        function.restype, function.argtypes = KINDS[result], [KINDS[a] for a in arguments]
    return library


lib = _load()


def check(status: int) -> None:
    """Raises the engine's own sentence."""
    if status:
        failure = Failure()
        lib.zero_last_failure(C.byref(failure))
        sentence, unit, call = ((t or b"").decode() for t in (failure.sentence, failure.unit, failure.call))
        raise ZeroError(sentence, lib.zero_status_name(failure.code).decode(), failure.rank, unit, call)
