"""The C interface, engine/zero.h, by ctypes. tests/python/abi_test.sh compares structs and signatures with the header."""

import ctypes as C
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

KINDS: dict[str, Any] = {"p": C.c_void_p, "s": C.c_char_p, "i": C.c_int, "e": C.c_int, "u": C.c_uint32, "q": C.c_uint64, "v": None}
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
        p:values,param_pointer,grad_pointer q:pointer_offset""")


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
ASK = C.CFUNCTYPE(C.c_int, C.c_void_p)
FROZEN, NO_DECAY = 1, 2
TRAIN, EVAL = 0, 1
PARAM = 0
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TIERS = ("device", "cpu", "nvme")


# name:result:arguments. "e" is a status: a failure raises ZeroError.
SIGNATURES = """
    version:s: last_failure:i:p status_name:s:i engine_open:e:spp engine_destroy:v:p engine_rank:u:p engine_size:u:p
    engine_micro_batch:q:p engine_accumulation_steps:q:p engine_train_batch:q:p engine_seed:q:p engine_setting:s:ps
    engine_dtype:i:p engine_cuda:i:pp engine_free_order_within:e:pu engine_add_unit:e:psp unit_add_param:e:pp
    unit_param:p:pu unit_hold:e:p param_addresses:e:pp engine_trace:e:pqq engine_commit:e:pp engine_fill:e:ppp
    engine_memory:i:pup micro_begin:e:pi micro_resume:e:p micro_cancel:e:p forward_begin:e:p forward_end:e:p
    backward_begin:e:p backward_end:e:p unit_give_grads:e:pp engine_step:e:pp engine_flush:e:p engine_loss_scale:f:p
    engine_set_lr:e:pid param_get:e:pipqq param_put:e:pipqq engine_hash:e:pp engine_save:e:ps engine_save_wait:e:p
    engine_load:e:ps engine_load_weights:e:ps engine_set_note:e:pss engine_note:s:ps engine_steps:q:p
    engine_write_trace:e:ps
"""


class ZeroError(RuntimeError):
    """A failure of the engine. `code` is its name ("ZERO_E_PEER"); `rank`, `unit` and `call` say where, if known."""

    def __init__(self, sentence: str, code: str = "ZERO_E_ORDER", rank: int = -1, unit: str = "", call: str = "") -> None:
        super().__init__(sentence)
        self.code, self.rank, self.unit, self.call = code, rank, unit, call


raised: list[BaseException] = []  # by handlers of signals, while a rank waited in the engine


def _answers() -> Generator[int, Any, None]:
    """Of zero_runtime.interrupted. Python runs handlers of signals when the main thread is back in Python code: at this yield,
    inside of the try, about every 100 ms while the rank waits."""
    while True:
        try:
            while True:
                yield int(bool(raised))
        except GeneratorExit:
            return
        except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt, in most cases
            raised.append(error)


def answering() -> Any:
    """A function for zero_runtime.interrupted."""
    answers = _answers()
    next(answers)
    return ASK(answers.send)


def library_path() -> str:
    """$ZERO_LIB, or the library in this package, or the system's."""
    bundled = Path(__file__).with_name("libzero.so")
    return os.environ.get("ZERO_LIB") or (str(bundled) if bundled.exists() else "libzero.so.0")


def openmp_libraries() -> list[str]:
    """The OpenMP libraries of this process. There must be one, torch's: two would start twice the threads."""
    maps = Path("/proc/self/maps").read_text()
    return sorted(set(re.findall(r"/\S*/lib(?:gomp|iomp5|omp)[-.]\S*", maps)))


def _check(status: int, *_: Any) -> int:
    """Raises the engine's own sentence."""
    if status:
        failure = Failure()
        lib.zero_last_failure(C.byref(failure))
        sentence, unit, call = ((t or b"").decode() for t in (failure.sentence, failure.unit, failure.call))
        name = lib.zero_status_name(failure.code).decode()
        if name == "ZERO_E_INTERRUPTED" and raised:
            raise raised.pop()
        raise ZeroError(sentence, name, failure.rank, unit, call)
    return status


def _load() -> Any:
    for path in openmp_libraries():  # torch has loaded it; the engine's library finds its functions there
        C.CDLL(path, C.RTLD_GLOBAL)
    library = C.CDLL(library_path())
    for signature in SIGNATURES.split():
        name, result, arguments = signature.split(":")
        function = getattr(library, "zero_" + name)
        function.restype, function.argtypes = KINDS[result], [KINDS[a] for a in arguments]
        if result == "e":
            function.errcheck = _check
    return library


lib = _load()
