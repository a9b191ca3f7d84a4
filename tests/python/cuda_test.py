"""What the package does for a GPU, without one: which GPU and stream it says, the trace on a GPU's tensors without data, generators."""

import copy
import ctypes as C
import os
import signal
import sys
import threading
import unittest
from functools import partial
from itertools import pairwise
from operator import methodcaller
from unittest.mock import MagicMock, call, patch

import torch
import torch.distributed as dist
from models import MLP, configuration, loss_of_vectors, made, vectors
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from two import Rank, without_zero

import zero
from zero import _abi, _activations, _units

GPU = torch.device("cuda", 1)


fakes = unittest.skipIf(
    torch.__version__ < (2, 12) and not torch.cuda.is_available(), "before 2.12, tensors without data on a GPU ask for its driver"
)


class Opened(Exception):
    """In place of an engine on a GPU."""


class Placed:
    """A parameter: that of PyTorch stays where its tensor without data was made."""

    def __init__(self, data):
        self.data = data

    device = property(lambda self: self.data.device)


def cuda(current=0, stream=0, initialized=True, capturing=False):
    """torch.cuda of a process with eight GPUs."""
    streams = lambda device=None: MagicMock(cuda_stream=stream)
    answers = {"is_available": lambda: True, "is_initialized": lambda: initialized, "current_device": lambda: current}
    answers |= {"device_count": lambda: 8, "set_device": MagicMock(), "current_stream": MagicMock(side_effect=streams)}
    answers["empty_cache"] = MagicMock()
    answers["is_current_stream_capturing"] = lambda: capturing
    return patch.multiple(torch.cuda, **answers)


def opened(model, **options):
    """The zero_runtime that fully_shard gives."""
    given = []

    def zero_engine_open(config, runtime):
        given.append(runtime)
        raise Opened

    with patch.object(_abi.lib, "zero_engine_open", zero_engine_open):
        try:
            zero.fully_shard(model, configuration(3), **options)
        except Opened:
            return given[0]


class Opening(unittest.TestCase):
    def test_which_gpu(self):
        """The one of `device`, or the current one."""
        given = [(torch.device("cuda", 3), 3), (torch.device("cuda"), 2), (torch.device("cuda", 0), 0)]
        self.which_gpu(*((device, "cpu", 2, expected) for device, expected in given), (None, "meta", 2, 2))

    @fakes
    def test_gpu_of_the_model(self):
        """Where no one has chosen, 0, for the engine to take the launcher's."""
        self.which_gpu((None, "cuda:5", 2, 5), (None, "cuda:0", 0, 0))

    def which_gpu(self, *rows):
        for device, place, current, expected in rows:
            with self.subTest(device=device, place=place), cuda(current, stream=0x70):
                with FakeTensorMode():
                    model = nn.ParameterList([torch.empty(4, device=place)])
                runtime = opened(model, device=device)
                self.assertEqual((runtime.cuda, runtime.local_rank, runtime.size), (2, expected, 0))
                self.assertEqual((runtime.cuda_stream, runtime.cuda_default_stream), (0x70, 0))
                torch.cuda.set_device.assert_called_with(expected)  # current_stream() and NCCL's broadcast are of this one

    def test_ranks_of_torch_distributed(self):
        """Each takes its own GPU, also where the program has chosen none, and has it before the first broadcast, which NCCL sends there."""
        chosen = [(None, 0, 6, 6), (None, 3, 6, 3), (torch.device("cuda", 0), 3, 6, 0), (None, 0, None, 0), (None, 0, 14, 6)]
        for device, current, local, expected in chosen:
            for place in ("meta", "cpu"):
                answers = {"is_initialized": lambda: True, "get_world_size": lambda: 8, "get_rank": lambda: 0, "get_backend": lambda: "nccl"}
                answers["broadcast_object_list"] = lambda given, src: self.at.append(torch.cuda.set_device.call_args)
                answers["get_node_local_rank"] = lambda otherwise, local=local: otherwise if local is None else local
                self.at = []
                with self.subTest(device=device, local=local, place=place), cuda(current), patch.multiple(dist, **answers):
                    runtime = opened(MLP().to(place), device=device)
                    self.assertEqual((runtime.size, runtime.local_rank), (8, expected))
                    self.assertEqual(self.at, [call(expected)])

    def test_streams(self):
        """The default stream's handle is 0. A GPU that the configuration alone chooses gets the same stream as the program's."""
        with cuda():
            runtime = opened(MLP(), device=torch.device("cuda"))
            self.assertEqual((runtime.cuda, runtime.cuda_stream, runtime.cuda_default_stream), (2, None, 1))
        for initialized, stream, expected in ((False, 0x70, (0, None, 1)), (True, 0x70, (0, 0x70, 0)), (True, 0, (0, None, 1))):
            with cuda(4, stream, initialized):
                runtime = opened(MLP())
                self.assertEqual((runtime.cuda, runtime.cuda_stream, runtime.cuda_default_stream), expected)
                self.assertEqual(runtime.local_rank, 4 if initialized else 0)

    def test_another_gpu_than_device_says(self):
        """Here the engine's is the CPU."""
        with cuda(), self.assertRaisesRegex(ValueError, "device is cuda:0, and this rank's is cpu, .*device.index"):
            zero.fully_shard(MLP(), configuration(3, device={"type": "cpu"}), device=torch.device("cuda", 0))
        zero.fully_shard(MLP(), configuration(3), device=torch.device("cpu", 0)).close()

    def test_never_the_cpu_instead(self):
        """A model that computes on a GPU has no engine on the CPU."""
        for place, device in (("meta", None), ("cpu", torch.device("cuda"))):
            with cuda(), patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""), self.assertRaisesRegex(zero.ZeroError, '^device cuda: .*"cpu"'):
                zero.fully_shard(MLP().to(place), configuration(3), device=device)
            with cuda():
                zero.fully_shard(MLP().to(place), configuration(3, device={"type": "cpu"}), device=device).close()

    @fakes
    def test_moved_afterwards(self):
        model = MLP()
        engine = zero.fully_shard(model, configuration(3))
        with FakeTensorMode():
            model.head.weight = nn.Parameter(torch.empty(10, 96, device="cuda:1"))
        with self.assertRaisesRegex(zero.ZeroError, "head.weight is on cuda:1 since fully_shard, whose engine is on cpu: move the model"):
            engine.commit()
        engine.close()

    @fakes
    def test_memory_is_free(self):
        """Before the engine takes its memory PyTorch's cache is empty, and a model on the GPU is in host memory; without an engine it is back."""
        with (mode := FakeTensorMode()):
            model = [Placed(torch.empty(4, device=place)) for place in (GPU, "cpu")]
        engine = zero.fully_shard(MLP(), configuration(3))
        seen = []

        def takes(handle):
            seen.append([p.device.type for p in model])
            torch.cuda.empty_cache.assert_called_once()
            raise Opened

        engine._passes.device, engine._passes.leaves = GPU, [MagicMock(parameter=p) for p in model]
        with cuda(), mode, patch.object(_abi.lib, "zero_engine_commit", takes), self.assertRaises(Opened):
            engine._take_memory()
        self.assertEqual((seen, [p.device.type for p in model]), ([["cpu", "cpu"]], ["cuda", "cpu"]))
        engine._passes.leaves = []
        with cuda(), patch.object(_abi.lib, "zero_engine_unpark", lambda handle: torch.cuda.empty_cache.assert_called_once()):
            engine.unpark()
        engine.close()

    def test_late(self):
        """What CUDA reads at its start is set by `import zero` alone; a program that has started CUDA before gets a line."""

        def imports(started):
            without_zero()
            for name in [name for name in os.environ if name.startswith("NCCL_")]:
                del os.environ[name]
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
            if started:
                torch.cuda.is_initialized = lambda: True
            import zero

            print(os.environ["NCCL_LAUNCH_RACE_FATAL"])
            torch.cuda.is_initialized = lambda: True
            from zero import _place

            print(_place.gpu_faults(), {*zero.__all__} <= {*dir(zero)}, zero.data)

        late = "CUDA has started without NCCL_LAUNCH_ORDER_IMPLICIT, NCCL_LAUNCH_RACE_FATAL: import zero"
        for started, line in ((False, ""), (True, late)):
            said = Rank(lambda started=started: imports(started), 0).output()
            self.assertRegex(said, "^0\n")
            self.assertRegex(said, f"{line}.*True <module 'zero.data'")
            self.assertEqual("CUDA has started" in said, started)

    def test_one_thread(self):
        """A backward of the engine's runs in the thread of the program, also on a GPU: Ctrl-C comes there alone."""
        engine = zero.fully_shard(made("mlp"), configuration(3))
        threads, x = [], vectors(0)[0].requires_grad_()
        x.register_hook(lambda grad: threads.append(torch._C._is_multithreading_enabled()))
        engine.backward(engine.model(x).sum())
        self.assertEqual((threads, torch._C._is_multithreading_enabled()), ([False], True))
        engine.close()

    def test_asked_at_once(self):
        """Two threads of an engine ask at the same moment whether the program is interrupted: both hear it."""
        begun, end, answers = threading.Event(), threading.Event(), []

        class Slow(list):
            def __bool__(self):
                begun.set()
                return end.wait(600)

        with patch.object(_abi, "raised", Slow([KeyboardInterrupt()])):
            other = threading.Thread(target=lambda: answers.append(_abi.interrupted(None)))
            other.start()
            begun.wait(600)
            end.set() if answers else threading.Timer(0.1, end.set).start()
            answers.append(_abi.interrupted(None))
            other.join()
        self.assertEqual(answers, [1, 1])

    def test_interrupted_in_c(self):
        """Ctrl-C that comes while no Python code runs is heard at the engine's next question, whoever has sys.unraisablehook."""
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))  # a shell may have ignored it
        calls = C.pythonapi.PyErr_SetInterrupt, partial(_abi.interrupted, None)
        with patch.object(sys, "unraisablehook"), patch.object(_abi, "raised", []) as raised:
            answers = list(map(methodcaller("__call__"), calls))
        self.assertEqual((answers[1], [type(error) for error in raised]), (1, [KeyboardInterrupt]))

    def test_another_stream(self):
        engine = zero.fully_shard(made("mlp"), configuration(3))
        engine.commit()
        engine._passes.device, engine._passes.stream = GPU, 0
        with cuda(stream=0x70), self.assertRaisesRegex(zero.ZeroError, "another CUDA stream"):
            loss_of_vectors(engine.model, 0)
        with cuda(capturing=True), self.assertRaisesRegex(zero.ZeroError, "a CUDA graph is captured here"):
            loss_of_vectors(engine.model, 0)
        with cuda():
            engine.backward(loss_of_vectors(engine.model, 0))
        engine.close()

    def test_another_stream_of_a_backward(self):
        """The engine's stream waits for the one on which autograd has made a unit's gradients, and their memory is kept until then."""
        for stream, own in ((0x60, "ExternalStream"), (0, "default_stream")):
            engine = zero.fully_shard(made("mlp"), configuration(3))
            engine.commit()
            engine._passes.device, engine._passes.stream = GPU, stream
            side = MagicMock(cuda_stream=0x70)
            with cuda(stream=stream), patch.object(torch.cuda, own) as made_stream, patch.object(torch.Tensor, "record_stream") as kept:
                loss = loss_of_vectors(engine.model, 0)
                made_stream.assert_not_called()
                torch.cuda.current_stream.side_effect = lambda device=None: side
                engine.backward(loss)
            made_stream.return_value.wait_stream.assert_called_with(side)
            kept.assert_called_with(made_stream.return_value)
            self.assertEqual(kept.call_count, len(list(engine.model.parameters())))
            engine.close()


class Backwards(MLP):
    """The order of calls is not that of registration."""

    def forward(self, x):
        for block in reversed(self.blocks):
            x = block(x)
        return self.head(x)


class ByData(Backwards):
    def forward(self, x):
        assert x.sum().item() != 0
        return super().forward(x)


class GpuMode(FakeTensorMode):
    """Of tensors that are on the GPU."""

    def from_tensor(self, tensor, **options):
        with self:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=GPU)


class OnGpu(torch.Tensor):
    """A tensor on the GPU: its data are where `to` brings them."""

    def to(self, place):
        return self.as_subclass(torch.Tensor).to(place)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ not in ("__get__", "as_subclass"):
            raise RuntimeError("Expected all tensors to be on the same device")
        return super().__torch_function__(func, types, args, kwargs or {})


@fakes
class Tracing(unittest.TestCase):
    def units(self, model, *args):
        """The order of units on a GPU."""
        engine = zero.fully_shard(model, configuration(3))
        self.addCleanup(engine.close)
        engine.device = GPU
        with patch.object(_units, "FakeTensorMode", GpuMode), self.assertLogs("zero", "INFO") as lines:
            engine._commit(args)
        self.without_data = not any("without data failed" in line for line in lines.output)
        self.warnings = [record.getMessage() for record in lines.records if record.levelname == "WARNING"]
        return [use.name for use in sorted((use for uses in engine._passes.uses.values() for use in uses), key=lambda use: use.index)]

    expected = ["blocks.2", "blocks.1", "blocks.0", "head"]

    def test_without_data(self):
        for place in ("cpu", "meta"):
            with self.subTest(place):
                self.assertEqual(self.units(Backwards().to(place), vectors(0)[0]), self.expected)
                self.assertTrue(self.without_data)
        for kind in ("gpt2", "llama", "resnet", "attention"):
            with self.subTest(kind):
                batch = torch.ones(4, 3, 32, 32) if kind == "resnet" else torch.ones(4, 16, dtype=torch.long)
                self.units(made(kind), batch)
                self.assertTrue(self.without_data)

    def test_with_data(self):
        """It runs where the parameters are. Without data of the parameters no order is known, which a line says."""
        data = vectors(0)[0].as_subclass(OnGpu)
        self.assertEqual(self.units(ByData(), data), self.expected)
        self.assertRegex("".join(self.warnings), "^a forward without data failed .*so copies of the model and of this batch run one with data")
        self.units(ByData().to("meta"), data)
        self.assertRegex("".join(self.warnings), "the order in which the model has them, .* on the meta device")

        class OfTheGpu(ByData):
            def forward(self, x):
                raise RuntimeError("a kernel for GPUs alone")

        self.units(OfTheGpu(), data)
        self.assertRegex("".join(self.warnings), "the order in which the model has them, .* a kernel for GPUs alone")

    def test_generators(self):
        """The trace, and first values, leave the GPUs' generators as they are."""
        states = {index: object() for index in range(8)}
        after = {}
        with cuda(), patch.object(torch.cuda, "get_rng_state", lambda device: states[device]):
            with patch.object(torch.cuda, "set_rng_state", lambda state, device: after.update({device: state})):
                self.units(ByData(), vectors(0)[0])
        self.assertEqual(after, states)
        engine = zero.fully_shard(MLP().to("meta"), configuration(3))
        self.addCleanup(engine.close)
        with patch.object(torch.cuda, "manual_seed_all") as seeds:
            engine.commit()
        seeds.assert_not_called()

    def test_dummy_inputs(self):
        """They are on the CPU."""
        moved = MagicMock(return_value=vectors(0)[0])

        class Dummy(torch.Tensor):
            def to(self, place):
                return moved(place)

        model = Backwards()
        model.dummy_inputs = {"x": vectors(0)[0].as_subclass(Dummy)}
        self.assertEqual(self.units(model), self.expected)
        moved.assert_called_once_with(GPU)


class Activations(unittest.TestCase):
    """What the plan leaves to the program's own tensors."""

    def left(self, model, *args, **options):
        engine = zero.fully_shard(model, configuration(3, **options.pop("config", {})), **options)
        self.addCleanup(engine.close)
        engine.commit(*args)
        return engine, next((planned for _, name, planned, _ in engine.memory() if name == "activations"), 0)

    def test_as_pytorch_counts(self):
        """The peak is that of PyTorch's own tracker, and the gradients of the largest two units in a row."""
        from torch.distributed._tools.mem_tracker import MemTracker

        for kind, batch in (("mlp", vectors(0)[0]), ("llama", torch.ones(4, 16, dtype=torch.long))):
            model, engine = made(kind), zero.fully_shard(made(kind), configuration(3))
            self.addCleanup(engine.close)
            groups, held = _units.lay_out(engine.model, None, None, set())
            units = {group.module: group.parameters.values() for group in groups}
            size = _activations.peak(engine.model, (batch,), {}, engine.device, units, held.values(), torch.float32, True)
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                model = made(kind)
                for p in model.parameters():
                    p.register_post_accumulate_grad_hook(lambda t: setattr(t, "grad", None))
                tracker = MemTracker()
                tracker.track_external(model)
                with tracker:
                    _activations._loss(model(mode.from_tensor(batch))).backward()
            found = next(iter(tracker.get_tracker_snapshot("peak").values()))
            seen = sum(size for kind, size in found.items() if kind in ("Activation", "Temp", "Other"))
            sizes = [sum(p.nbytes for p in parameters) for parameters in units.values()]
            gradients = max(a + b for a, b in pairwise(sizes)) + sum(p.nbytes for p in held.values())
            self.assertAlmostEqual((size - gradients) / seen, 1, delta=0.02, msg=f"{kind}: {size - gradients} and {seen}")

    def test_in_the_plan(self):
        x, _ = vectors(0)
        for activations, expected in ((0, 0), (12345, 12345)):
            self.assertEqual(self.left(made("mlp"), x, activations=activations)[1], expected)
        _, small = self.left(made("mlp"), x, activations="auto")
        _, large = self.left(made("mlp"), x.repeat(999, 1), activations="auto")
        _, narrow = self.left(made("mlp"), x.repeat(999, 1), activations="auto", config={"bf16": {"enabled": True}})
        grows = large - small
        self.assertGreater(grows, 3 * 3 * x.nbytes * 990)  # three blocks, each of which saves three tensors like x
        self.assertLess(narrow - small, 0.7 * grows)
        with self.assertLogs("zero", "WARNING") as lines:
            self.assertEqual(self.left(ByData(), x, activations="auto")[1], 0)
        self.assertIn("give fully_shard activations=BYTES", "".join(lines.output))
        with self.assertLogs("zero", "WARNING") as lines, torch.no_grad():
            self.left(made("mlp"), x, activations="auto")
        self.assertIn("call engine.commit(...) with a training batch", "".join(lines.output))
        with self.assertRaisesRegex(ValueError, 'activations is .all.: give "auto"'):
            zero.fully_shard(made("mlp"), configuration(3), activations="all")

    def test_compared(self):
        """With the peak of the first step."""
        gib = 1 << 30
        for peak, said in ((5, None), (9, "activations=9663676416"), (1, "activations=0")):
            answers = {"reset_peak_memory_stats": MagicMock(), "memory_reserved": lambda device: gib}
            answers["max_memory_reserved"] = lambda device, peak=peak: peak * gib
            with patch.multiple(torch.cuda, **answers):
                engine, _ = self.left(made("mlp"), vectors(0)[0], activations=6 * gib if peak == 5 else 0)
                engine._compared = _activations.Compared(GPU, 6 * gib)
                torch.cuda.reset_peak_memory_stats.assert_called_once_with(GPU)
                with self.assertLogs("zero", "WARNING") if said else self.assertNoLogs("zero", "WARNING") as lines:
                    for step in range(2):
                        engine.backward(loss_of_vectors(engine.model, step))
                        engine.step()
            if said:
                self.assertRegex("".join(lines.output), said)
                self.assertEqual(len(lines.output), 1)


addresses = set()


def at(t, value=None):
    """What a kernel of a library does, to which Python gives an address."""
    addresses.add(t.data_ptr())
    memory = torch.frombuffer((C.c_char * t.nbytes).from_address(t.data_ptr()), dtype=t.dtype).view(t.shape)
    return memory.clone() if value is None else memory.copy_(value)


class ByAddress(torch.autograd.Function):
    """A product whose operands and results are addresses."""

    @staticmethod
    def forward(ctx, x, w, keep):
        """`keep`: the operands by itself, as bitsandbytes does."""
        out = x.new_empty(len(x), len(w))
        at(out, at(x) @ at(w).T)
        ctx.kept = (x.detach(), w.detach()) if keep else None
        ctx.save_for_backward(*(() if keep else (x, w)))
        return out

    @staticmethod
    def backward(ctx, grad):
        (x, w), grad = ctx.kept or ctx.saved_tensors, at(grad.contiguous())
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        at(dx, grad @ at(w))
        at(dw, grad.T @ at(x))
        return dx, dw, None


class Addresses(unittest.TestCase):
    def test_functions_that_take_addresses(self):
        """flash-attn, bitsandbytes, Liger and others: a unit's parameters are at their addresses while such a function runs."""

        class Product(nn.Module):
            def __init__(self, keep):
                super().__init__()
                self.keep, self.w = keep, nn.Parameter(torch.randn(8, 8))

            def forward(self, x):
                return ByAddress.apply(x, self.w, self.keep)

        for keep in (False, True):
            model = nn.Sequential(*(Product(keep) for _ in range(3)))
            for stage in (0, 3):
                engine = zero.fully_shard(copy.deepcopy(model), configuration(stage))
                with self.assertLogs("zero", "WARNING") as lines:  # not with tensors without data
                    engine.backward(engine.model(torch.ones(4, 8)).square().sum())
                self.assertIn("a forward without data failed", "".join(lines.output))
                gradients = torch.autograd.grad(model(torch.ones(4, 8)).square().sum(), [*model.parameters()])
                for (name, _), grad in zip(model.named_parameters(), gradients, strict=True):
                    torch.testing.assert_close(engine.gradient(name), grad)
                engine.close()
        self.assertNotIn(0, addresses, "a GPU's context ends with a kernel at address 0")


class Graphs(unittest.TestCase):
    def test_gradients_in_the_memory_of_graphs(self):
        """After a forward that replays a CUDA graph of torch.compile, gradients of before are overwritten, whoever holds them: the engine
        reads copies. Without graphs it reads what autograd has made."""
        gradients, give = [], _abi.lib.zero_unit_give_grads
        for graphs in (False, True):
            trees = MagicMock(get_manager=lambda index, create, graphs=graphs: (index, create) == (1, False) and graphs or None)
            engine = zero.fully_shard(made("mlp"), configuration(3))
            engine.commit()
            engine._passes.device, kept, lent = GPU, [], []
            for p in engine.model.parameters():
                p.register_post_accumulate_grad_hook(lambda p: kept.append(p.grad.detach()))
            gives = lambda unit, grads: lent.append({*grads} & {grad.data_ptr() for grad in kept}) or give(unit, grads)
            with cuda(), patch.dict(sys.modules, {"torch._inductor.cudagraph_trees": trees}), patch.object(_abi.lib, "zero_unit_give_grads", gives):
                engine.backward(loss_of_vectors(engine.model, 0))
            self.assertEqual([bool(addresses) for addresses in lent], [not graphs] * 4)
            gradients.append({name: engine.gradient(name) for name, _ in engine.model.named_parameters()})
            engine.close()
        torch.testing.assert_close(*gradients, rtol=0, atol=0)


class DefaultDevice(unittest.TestCase):
    def test_what_is_on_the_host(self):
        """torch.set_default_device("cuda") moves nothing that the engine reads and writes on the host. The meta device stands for it."""

        def values(model):
            engine = zero.fully_shard(model, configuration(3))
            self.addCleanup(engine.close)
            state = engine.state_dict()
            engine.load_state_dict(state)
            return state, engine.hash(), next(iter(zero.Batches(engine, 16, seed=1)))

        for place in ("cpu", "meta"):
            (state, *rest), model = values(made("mlp").to(place)), made("mlp").to(place)
            with torch.device("meta"):
                (again, *others) = values(model)
            self.assertEqual(rest, others)
            self.assertEqual([name for name in state if not torch.equal(state[name], again[name])], [])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
