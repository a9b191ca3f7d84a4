"""A torch.nn.Module on the engine: what a user calls."""

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from zero._abi import ZeroError, lib
from zero._place import fails
from zero._state import State

_TIERS = ("device", "cpu", "nvme")


class Engine(State):
    """A model whose parameters, gradients and optimizer state the engine keeps. zero.fully_shard makes it."""

    # ---- the device for something else ----

    def park(self, tier: str = "cpu") -> None:
        """Gives the engine's memory on the device back between two steps: its content goes to host memory ("cpu") or to a
        drive ("nvme", in the configuration's nvme_path), until unpark(). Collective."""
        if tier not in _TIERS[1:]:
            raise ValueError(f'zero: engine.park: tier is {tier!r}; give "cpu" or "nvme"')
        self._prepare_between(micro_steps=False)
        passes = self._passes
        passes.parked = True
        try:
            lib.zero_engine_park(self._handle, _TIERS.index(tier))
        except ZeroError:
            passes.parked = False
            raise
        for leaf in passes.leaves:
            leaf.park()

    def unpark(self) -> None:
        """Takes the memory again. Training goes on with the same bits; parameters may be at other addresses. Collective."""
        self._free_cache()
        try:
            lib.zero_engine_unpark(self._handle)
        except ZeroError as error:
            if error.code != "ZERO_E_ORDER" or not self._passes.parked:
                raise  # else an exception came after the call before
        self._passes.come_back()

    # ---- reports ----

    def plan(self) -> dict[str, Any]:
        """The plan of commit for this rank: bytes at rest and gathered, and by tier."""
        plan = self._commit()
        values = {name: getattr(plan, name) for name, *_ in plan._fields_[1:]}
        return values | {"bytes": dict(zip(_TIERS, plan.bytes, strict=True))}

    def memory(self) -> list[tuple[str, str, int, int]]:
        """Rows of tier, name, planned and measured bytes."""
        self._commit()
        rows: list[tuple[str, str, int, int]] = []
        with suppress(ZeroError):  # past the last
            for i in itertools.count():
                row = lib.zero_engine_memory(self._handle, i)
                rows.append((_TIERS[row.tier], row.name.decode(), row.planned, row.measured))
        return rows

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the steps that the configuration's `trace` chooses, for ui.perfetto.dev."""
        lib.zero_engine_write_trace(self._handle, path)

    def close(self, give_back: bool = False, keep: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Ends the engine, once a save in the background is complete. With `give_back` the model is a plain one again, on every rank, with the
        parameters' own types, on the engine's device; that is collective. Else the parameters are no longer there. While an exception is
        handled it ends at once. `keep` takes what stays of each parameter's values, which are flat, as `ds_tensor`."""
        whole = self._all(keep) if give_back and self._filled and not fails() else []
        try:
            if self._saving and not fails() and os.getpid() == self._passes.process:
                self.save_wait()
        finally:
            self._let_go()
            for leaf, value in whole:
                leaf.give_back(value, part=keep is not None)
