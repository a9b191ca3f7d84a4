"""Weights and states as a program reads, writes and saves them. Collective, between steps, or also between micro-steps."""

import ctypes as C
import io
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from zero import _gathered, _header
from zero._abi import ZeroError, lib
from zero._files import NAMES, SINGLE, groups_to_write, own_name, plain, remove_older, step_directory, write
from zero._leaf import Leaf
from zero._training import Training

_T = TypeVar("_T")


def _saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _loaded(data: bytes) -> Any:
    """Runs no code of the file's."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class State(Training):
    """What rests."""

    def _all(self, keep: Callable[[torch.Tensor], torch.Tensor] | None = None) -> list[tuple[Leaf, torch.Tensor]]:
        """Of each parameter, or what is kept of its values, in its own type."""
        self._prepare_between(micro_steps=False)
        values = ((leaf, self._get(leaf).to(leaf.first[0])) for leaf in self._passes.leaves)
        return [(leaf, keep(value.flatten()).clone() if keep else value) for leaf, value in values]

    def full_parameters(
        self, writeback: bool = False, *, rank0_only: bool = False, averages: bool = False
    ) -> AbstractContextManager[nn.Module]:
        """Inside, every parameter of the model is a whole fp32 copy on the CPU, on every rank, or on rank 0 alone; with `writeback`,
        what has changed goes to the engine, rank 0's where ranks differ, and so `writeback` needs the copies on every rank. With `averages` the
        copies are the averaged weights ("ema" in the configuration): to evaluate them under torch.no_grad(), as a
        torch.optim.swa_utils.AveragedModel; on a GPU, where buffers stay, averaged() is for that. Nothing in the engine changes."""
        if writeback and rank0_only:
            raise ZeroError("zero: full_parameters: with writeback every rank changes its copies; leave out writeback or rank0_only")
        if writeback and averages:
            raise ZeroError("zero: full_parameters: averages are not written back; leave out writeback or averages")
        return self._within(self._whole(writeback, rank0_only, averages), self._end_whole)

    @contextmanager
    def _whole(self, writeback: bool, rank0_only: bool, averages: bool) -> Iterator[nn.Module]:
        self._prepare_between()
        passes = self._passes
        passes.whole = True
        try:
            for leaf in passes.leaves:
                whole = self._get(leaf, averages)
                if not passes.done:  # else the step would be dropped, as by zero_grad()
                    leaf.parameter.grad = None
                if self.rank == 0 or not rank0_only:
                    leaf.lend(whole)
            yield self.model
            if writeback:
                self._agree([leaf.parameter for leaf in passes.leaves])
                values = [leaf.parameter.detach().to("cpu", torch.float32).contiguous() for leaf in passes.leaves]
                self._puts = list(zip(passes.leaves, values, strict=True))
        finally:
            self._end_whole()
            passes.within.pop()

    def _put(self) -> None:
        self._passes.sleep()
        for leaf, value in self._puts:
            lib.zero_param_put(leaf.handle, _header.ZERO_PARAM, value.data_ptr(), 0, value.numel())
        self._puts = []

    def _end_whole(self) -> None:
        """Also once more, after an exception: all of what has changed is written, or nothing."""
        try:
            self._put()
        finally:
            self._passes.come_back()

    def _gathered(self, leaves: list[Leaf], modify: int | None) -> AbstractContextManager[None]:
        """zero.gathered for this engine's parameters."""
        away = [leaf for leaf in leaves if not leaf.away]
        return self._within(contextmanager(_gathered.lend)(self, leaves, away, modify), lambda: _gathered.give_back(self, away))

    def averaged(self) -> AbstractContextManager[nn.Module]:
        """Inside, forwards under torch.no_grad() compute with the averaged weights ("ema" in the configuration), between two steps:
        they exchange places with the weights, so that no rank holds the model and no memory is taken. Afterwards every bit is in its
        place again. Inside, calls that read or change weights are refused: training, saves, the hash. Collective."""
        return self._within(self._averaged(), lambda: lib.zero_engine_ema_end(self._handle))

    @contextmanager
    def _averaged(self) -> Iterator[nn.Module]:
        self._prepare_between(micro_steps=False)
        self._passes.sleep()
        lib.zero_engine_ema_begin(self._handle)
        try:
            yield self.model
        finally:
            self._passes.settle()
            self._passes.sleep()
            lib.zero_engine_ema_end(self._handle)
            self._passes.within.pop()

    def _within(self, manager: AbstractContextManager[_T], end: Callable[[], None]) -> AbstractContextManager[_T]:
        """Whatever comes between a `with` and its end, the next call ends it."""
        self._passes.leave()  # the one before
        self._passes.within.append((manager.gen, end))  # type: ignore[attr-defined]
        return manager

    def state_dict(self, *, rank0_only: bool = False, averages: bool = False) -> dict[str, torch.Tensor]:
        """The whole model: fp32 weights, or with `averages` their averages, and buffers, by the model's own names. With
        `rank0_only`, {} on the others."""
        with self.full_parameters(rank0_only=rank0_only, averages=averages) as model:
            state: dict[str, torch.Tensor] = model.state_dict()
        if rank0_only and self.rank:
            return {}
        leaves = {leaf.parameter for leaf in self._passes.leaves}
        copies = {name for name, p in self.model.named_parameters(remove_duplicate=False) if p in leaves}
        return {k: t.clone() if isinstance(t, torch.Tensor) and k not in copies else t for k, t in state.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Weights and buffers by the model's own names, as Module.load_state_dict, whose missing and unexpected keys it returns. Moments
        and the step count stay."""
        with self.full_parameters(writeback=True) as model:
            return model.load_state_dict(state, strict)

    def _kept(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the engine's parameters: persistent buffers, extra states, parameters of integers."""
        known = {id(leaf.parameter) for leaf in self._passes.leaves}
        state = {own_name(name): t for name, t in self.model.state_dict(keep_vars=True).items() if id(t) not in known}
        kept = {name: t.detach().to("cpu", copy=True) for name, t in state.items() if isinstance(t, torch.Tensor)}
        for name in state.keys() - kept.keys():
            with suppress(Exception):  # of any pickler
                kept[name] = _loaded(_saved(state[name]))
        if kept.keys() != state.keys():
            names = ", ".join(sorted(state.keys() - kept.keys()))
            warnings.warn(f"zero: a checkpoint keeps tensors, numbers and texts, and so leaves out {names}", stacklevel=4)
        return kept

    def save(self, directory: str | os.PathLike[str], notes: dict[str, str] | None = None) -> None:
        """A checkpoint of weights, optimizer state and rank 0's persistent buffers, as `zero train` writes them:
        `directory`/step_NNNNNNNN, and `directory`/latest. `notes`: texts to keep with it, beside those of the position, `steps`,
        `samples` and `train_batch`, which they may replace. With "checkpoint": {"async": true} training goes on while it is written:
        save_wait() and close() wait for it, and raise if it fails."""
        self._prepare_between()
        handle = self._handle
        position = {"steps": self.samples // self.train_batch, "samples": self.samples, "train_batch": self.train_batch}
        for key, text in ({key: str(value) for key, value in position.items()} | (notes or {})).items():
            lib.zero_engine_set_note(handle, key, text)
        self.optimizer.tell(handle)
        lib.zero_engine_set_note(handle, "groups", self.optimizer.note())
        pieces = self.optimizer.pieces
        self._rank_file = pieces.saved() if pieces else None
        lib.zero_engine_set_rank_file(handle, self._rank_file, len(self._rank_file or b""))
        kept = self._kept()
        data = _saved(kept)
        checksum = self._broadcast(torch.tensor([zlib.crc32(data)])).item()
        lib.zero_engine_set_note(handle, "program.bin", str(checksum) if kept else None)
        lib.zero_engine_set_file(handle, data if kept else None, len(data))
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
        lib.zero_engine_save(handle, directory)
        self._saving = self.setting("checkpoint.async") == "true"

    def save_wait(self) -> None:
        """Waits until the last save is complete, and raises if it has failed. Collective."""
        self._passes.settle()
        self._saving = False
        lib.zero_engine_save_wait(self._handle)

    def load(self, directory: str | os.PathLike[str], *, weights_only: bool = False, averages: bool = False) -> None:
        """Goes on from a checkpoint of any stage, tier and number of ranks; or takes its weights alone, or with `averages` its
        averaged weights as the weights. A step that has begun is dropped."""
        self._passes.restart()
        self._commit()
        call = lib.zero_engine_load_weights if weights_only else lib.zero_engine_load
        call = lib.zero_engine_load_ema if averages else call
        self._loading = True
        self._passes.sleep()
        try:
            call(self._handle, directory)
        except ZeroError:
            self._loading = False
            raise
        if not weights_only and not averages:
            self.optimizer.loaded(self._handle)
        self._samples = int(self.note("samples") or self.steps * self.train_batch) if self.steps else 0
        if not self._filled:
            self._attach()
        if self.optimizer.pieces and not weights_only and not averages:
            self.optimizer.pieces.load(self, step_directory(Path(directory)))
        checksum = self.note("program.bin")
        if checksum is not None:
            self._take_kept(step_directory(Path(directory)) / "program.bin", checksum)
        self._loading = False

    def _take_kept(self, path: Path, checksum: str) -> None:
        data = path.read_bytes() if path.exists() else b""
        if str(zlib.crc32(data)) != checksum:
            raise ZeroError(
                f"zero: {path} is {'damaged' if data else 'missing'}, which has the buffers of this checkpoint: load another one",
                "ZERO_E_IO",
            )
        kept, names = _loaded(data), {own_name(name): name for name in self.model.state_dict(keep_vars=True)}
        self.model.load_state_dict({names[name]: value for name, value in kept.items() if name in names}, strict=False)
        differ = kept.keys() ^ self._kept().keys()
        if differ:
            warnings.warn(
                f"zero: only one of {path} and the model has {', '.join(sorted(differ)[:5])}: it is left as it is", stacklevel=4
            )

    def resume(self, directory: str | os.PathLike[str]) -> bool:
        """Goes on from the latest complete checkpoint in `directory`, if there is one, on any number of ranks. Another batch than
        its run's is refused: then steps would take other samples. For a program that a launcher starts again and again."""
        self._commit()
        here = Path(directory)  # a crash in the first save may leave a checkpoint without `latest`
        if not self._any(self.rank == 0 and ((here / "latest").exists() or any(here.glob("step_*")))):  # rank 0 decides for all
            return False
        self.load(directory)
        batch = self.note("train_batch")
        if batch and int(batch) != self.train_batch:
            raise ZeroError(
                f"zero: {os.fspath(directory)} is of a run with batches of {batch} samples, and here are {self.train_batch} on "
                f'{self.size} ranks: set "train_batch_size": {batch} in place of "gradient_accumulation_steps"'
            )
        return True

    def note(self, key: str) -> str | None:
        """A text that was saved with the checkpoint."""
        text: str | None = lib.zero_engine_note(self._handle, key)
        return text

    def save_pretrained(self, directory: str | os.PathLike[str], dtype: torch.dtype | None = None, *, averages: bool = False) -> None:
        """config.json and model.safetensors, as from_pretrained reads them, in the place of what an earlier save has written there; of a
        model of PEFT its adapters, as PEFT writes them. With `averages`, of the averaged weights. No rank holds the model."""
        model, place = plain(self.model), Path(directory)
        with self.adapters(dtype, averages) as adapters:
            if adapters is not None:
                model.save_pretrained(directory, state_dict=adapters, is_main_process=self.rank == 0)
        if adapters is None:
            self._write(place, dtype, averages)
            if self.rank == 0 and hasattr(model, "config"):
                model.config.save_pretrained(directory)
        self._any(False)  # the files are there for all ranks

    def _write(self, place: Path, dtype: torch.dtype | None, averages: bool) -> None:
        leaves = {leaf.parameter: leaf for leaf in self._passes.leaves}
        state = {own_name(name): t for name, t in plain(self.model).state_dict(keep_vars=True).items()}
        no_place = [name for name, t in state.items() if not isinstance(t, torch.Tensor) or t.dtype not in NAMES]
        if no_place:
            warnings.warn(f"zero: safetensors files have no place for {', '.join(no_place)}: left out of {place}", stacklevel=4)
        once = {id(t): (name, t) for name, t in reversed(state.items()) if name not in no_place}  # a tied one goes once
        tensors = dict(reversed(once.values()))
        empty = lambda name: torch.empty_like(tensors[name], dtype=(tensors[name] in leaves and dtype) or None, device="meta")
        whole = lambda name: self._get(leaves[tensors[name]], averages) if tensors[name] in leaves else tensors[name]
        groups = groups_to_write(plain(self.model), tensors)
        entries = {name: (t.shape, t.dtype) for group in groups for name, t in group.convert(plain(self.model), empty).items()}
        values = (t for group in groups for t in group.convert(plain(self.model), whole).values())
        path = place / f"{SINGLE}.partial" if self.rank == 0 else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            write(file, entries, values)
        if self.rank == 0:
            path.replace(path.with_suffix(""))  # until here an earlier file is whole
            remove_older(place)

    @contextmanager
    def adapters(self, dtype: torch.dtype | None = None, averages: bool = False) -> Iterator[dict[str, Any] | None]:
        """The state that a PEFT model's save_pretrained takes: the adapters' tensors, and of the others their shapes. None: of a model
        without PEFT. Collective."""
        self._prepare_between()
        model, leaves = plain(self.model), {leaf.parameter: leaf for leaf in self._passes.leaves}
        configs = getattr(model, "peft_config", None)
        if not configs:
            yield None
        elif any(config.is_prompt_learning for config in configs.values()):  # what PEFT saves then is a forward's result
            with self.full_parameters(rank0_only=True, averages=averages):
                yield model.state_dict() if self.rank == 0 else {}
        else:
            from peft import get_peft_model_state_dict

            state = {own_name(name): t for name, t in model.state_dict(keep_vars=True).items()}
            shapes = {name: torch.empty_like(t, device="meta") if t in leaves else t for name, t in state.items()}
            taken = {id(t) for name in configs for t in get_peft_model_state_dict(model, shapes, name).values()}
            for name, t in state.items():
                if t in leaves and id(shapes[name]) in taken:
                    shapes[name] = self._get(leaves[t], averages).to(dtype or t.dtype)
            yield shapes

    def hash(self) -> str:
        """The hash of all fp32 weights under their names: the same at every stage, on every tier and number of ranks."""
        self._prepare_between()
        out = C.create_string_buffer(33)
        lib.zero_engine_hash(self._handle, out)
        return out.value.decode()
