"""The engine's library. _header.py, which declares its functions, is made from engine/zero.h when the wheel is built."""

import ctypes as C
import json
import operator
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch  # first: the engine's library uses its OpenMP library

from zero import _header


class ZeroError(RuntimeError):
    """A failure of the engine. `code` is its name ("ZERO_E_PEER"); `rank`, `unit` and `call` say where, if known."""

    def __init__(self, sentence: str, code: str = "ZERO_E_ORDER", rank: int = -1, unit: str = "", call: str = "") -> None:
        super().__init__(sentence)
        self.code, self.rank, self.unit, self.call = code, rank, unit, call


raised: list[BaseException] = []  # by Python code that the library has called: the call that has led there raises it


def _answers() -> Generator[int, Any, None]:
    """Python runs handlers of signals when the main thread is in Python code: at this yield, inside of the try, about every 100 ms while
    the rank waits."""
    while True:
        try:
            while True:
                yield int(bool(raised))
        except GeneratorExit:
            return
        except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt, in most cases
            raised.append(error)


class _Asked(threading.local):
    """For zero_runtime.interrupted: each thread has a generator, and no bytecode runs outside of it."""

    def __init__(self) -> None:
        answers = _answers()
        next(answers)
        self.send = answers.send

    __call__ = property(operator.attrgetter("send"))


interrupted = C.CFUNCTYPE(C.c_int, C.c_void_p)(_Asked())

_callbacks: weakref.WeakSet[Any] = weakref.WeakSet()


def callback(kind: Any, function: Callable[..., Any]) -> Any:
    """For C. What it raises, and Ctrl-C on the way into it, comes out of the call of the library."""
    _callbacks.add(function)
    return kind(function)


def _lost(lost: Any, others: Callable[[Any], Any] = sys.unraisablehook) -> None:
    """ctypes drops what a callback raises."""
    if "ctypes callback" in (lost.err_msg or "") and any(lost.object is f or repr(f) in lost.err_msg for f in _callbacks):
        raised.append(lost.exc_value)
    else:
        others(lost)


sys.unraisablehook = _lost


def library_path() -> str:
    """$ZERO_LIB, or the library in this package, or the system's."""
    bundled = Path(__file__).with_name("libzero.so")
    return os.environ.get("ZERO_LIB") or (str(bundled) if bundled.exists() else "libzero.so.0")


def openmp_libraries() -> list[str]:
    """The OpenMP libraries of this process. There must be one, torch's: two would start twice the threads."""
    maps = Path("/proc/self/maps").read_text()
    return sorted(set(re.findall(r"/\S*/lib(?:gomp|iomp5|omp)[-.]\S*", maps)))


def _check(status: int | None, function: Any, arguments: Any) -> Any:
    """Raises the engine's own sentence, or the first exception of Python code in this call."""
    if raised:
        try:
            raise raised[0]
        finally:
            raised.clear()
    if status:
        failure = lib.zero_last_failure()
        sentence, unit, call = ((text or b"").decode(errors="replace") for text in (failure.sentence, failure.unit, failure.call))
        raise ZeroError(sentence, lib.zero_status_name(failure.code), failure.rank, unit, call)
    return arguments


def _decode(text: bytes | None, function: Any, arguments: Any) -> str | None:
    return None if text is None else text.decode(errors="replace")  # a path need not be UTF-8


def _load() -> Any:
    for path in openmp_libraries():
        C.CDLL(path, C.RTLD_GLOBAL)
    library = C.CDLL(library_path())
    checks = {_header.Status: _check, C.c_char_p: _decode, None: _check}
    for name, (result, arguments, flags) in _header.FUNCTIONS.items():
        prototype = C.CFUNCTYPE(C.c_int if result is _header.Status else result, *arguments)
        function: Any = prototype((name, library), *flags)
        if result in checks:
            function.errcheck = checks[result]
        setattr(library, name, function)
    return library


lib = _load()


_SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def _plain(value: Any, key: str = "") -> Any:
    """What JSON has, of what Python programs write into a configuration: paths, types of PyTorch, numbers of NumPy."""
    if isinstance(value, dict):
        return {str(name): _plain(v, f"{key}.{name}"[not key :]) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{key}[{i}]") for i, v in enumerate(value)]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.dtype):
        return _SHORT.get(value, str(value))
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):
        raise ZeroError(
            f"zero: {key} of the configuration is {value!r}, a {type(value).__name__}: give a number, a text, true or false, or a list or "
            "dictionary of these",
            "ZERO_E_CONFIG",
        ) from None


def config_json(config: str | os.PathLike[str] | dict[str, Any]) -> str:
    """The configuration as JSON: a dictionary, or that of a file, or a text, with comments or in base64, as the engine reads it."""
    if isinstance(config, dict):
        return json.dumps(_plain(config))
    bytes_max = 1 << 16
    while True:
        text = C.create_string_buffer(bytes_max)
        size: int = lib.zero_config_text(config, text, bytes_max)
        _check(size == 0, None, None)
        if size <= bytes_max:
            return text.value.decode()
        bytes_max = size


__version__: str = lib.zero_version()
