"""interrupts_test.py [POINTS [SEED]]: an exception at a bytecode of the package, as Ctrl-C is one, in each phase of a training. The program
repeats what it was doing, or what the engine's sentence says, and has the bits of a training without exceptions."""

import contextlib
import dis
import os
import random
import signal
import sys
import tempfile
import unittest

import torch
from models import MLP, configuration, loss_of_vectors
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import zero

PACKAGE = os.path.dirname(zero.__file__)
POINTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000 // int(os.environ.get("ZERO_TEST_DIVISOR", "1"))
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
MICROS = 2
STEPS = 24  # of a training; then the next one begins


class Stop(KeyboardInterrupt):
    """Of this test."""


def stop(*_):
    raise Stop


class Model(MLP):
    """With a parameter of the whole model, a checkpoint and hooks of the program on saved tensors."""

    def __init__(self):
        super().__init__(3)
        self.scale = nn.Parameter(torch.ones(96))

    def forward(self, x):
        x = self.blocks[0](x * self.scale)
        x = checkpoint(self.blocks[1], x, use_reentrant=False)
        with save_on_cpu():
            x = self.blocks[2](x)
        return self.head(x)


def returns(code, at):
    """To raise there is to raise after the call. Python looks for signals at calls, jumps and functions' beginnings alone."""
    return any(dis.opname[op].startswith("RETURN_") for op in code[at : at + 4 : 2])


class Interrupt:
    """Raises at the bytecode `at` of the package, counted while it is there."""

    def __init__(self, at):
        self.left, self.where = at, ""

    def trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and not returns(frame.f_code.co_code, frame.f_lasti):
            self.left -= 1
            if self.left == 0:
                self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}, opcode {frame.f_lasti}"
                signal.raise_signal(signal.SIGINT)
        return self.trace

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, kind, error, trace):
        sys.settrace(None)
        self.out = kind is Stop or bool(error and self.where)  # ctypes raises its own for one that comes while it converts an argument
        return self.out


class Training:
    """An engine, and another one without exceptions."""

    def __init__(self, stage, free, **config):
        self.make = lambda: zero.fully_shard(self.model(), configuration(stage, gradient_accumulation_steps=MICROS, **config), free_order=free)
        self.engine, self.other = self.make(), self.make()
        self.steps, self.points, self.where = 0, {}, []
        self.directory = tempfile.TemporaryDirectory()

    def model(self):
        torch.manual_seed(1)
        return Model()

    def run(self, phase, call):
        """Whether an exception came out of the call: one in each phase that has a point."""
        if phase not in self.points:
            self.result = call()
            return False
        with (interrupt := Interrupt(self.points[phase])):
            self.result = call()
        if interrupt.where:
            del self.points[phase]
            self.where.append(f"{phase} {interrupt.where}")
        return interrupt.out

    def forward(self, micro):
        return loss_of_vectors(self.engine.model, MICROS * self.steps + micro)

    def evaluate(self):
        with torch.no_grad():
            self.forward(99)

    def attempt(self):
        """A step; False: it is to be repeated, because a backward of it has raised."""
        for micro in range(MICROS):
            self.run("evaluate", self.evaluate)
            while self.run("forward", lambda: self.forward(micro)):  # this drops the forward alone
                pass
            loss = self.result
            self.run("evaluate", self.evaluate)
            if self.run("backward", lambda: self.engine.backward(loss)):
                return False
        if self.run("step", self.engine.step) and self.engine.steps == self.steps:
            self.engine.step()
        return True

    def step(self):
        for _ in range(5):
            try:
                if self.attempt():
                    break
            except zero.ZeroError as error:
                if "repeat" not in str(error) and "engine.step()" not in str(error):
                    raise
                self.engine.optimizer.zero_grad()
        for micro in range(MICROS):
            self.other.backward(loss_of_vectors(self.other.model, MICROS * self.steps + micro))
        self.other.step()
        self.steps += 1
        assert (self.engine.steps, self.engine.samples) == (self.other.steps, self.other.samples) == (self.steps, 8 * self.steps)

    def rest(self):
        for call in (self.park, self.unpark, self.whole, self.averaged):
            if self.run(call.__name__, call):
                call()
        assert self.engine.hash() == self.other.hash(), "other weights"
        if "write" in self.points:
            self.write()
        if "load" in self.points:
            self.engine.save(self.directory.name)
        if "load" in self.points and self.run("load", self.load):
            try:
                self.evaluate()  # it was done, or not begun
            except zero.ZeroError as error:
                assert "call engine.load(...) again" in str(error), error
            self.load()
        assert self.engine.hash() == self.other.hash(), "other weights after a load"

    def write(self):
        """All of it, or nothing."""
        before = self.other.hash()
        self.other.load_state_dict(state := {name: value * 0.999 for name, value in self.other.state_dict().items()})
        if self.run("write", lambda: self.engine.load_state_dict(state)):
            assert self.engine.hash() in (before, self.other.hash()), "a part of the weights"
            self.engine.load_state_dict(state)

    def load(self):
        self.engine.load(self.directory.name)

    def park(self):
        with self.unless("the engine is parked"):
            self.engine.park()

    def unpark(self):
        with self.unless("not parked"):
            self.engine.unpark()

    @contextlib.contextmanager
    def unless(self, done):
        """It was done before the exception."""
        try:
            yield
        except zero.ZeroError as error:
            if done not in str(error):
                raise

    def whole(self):
        with self.engine.full_parameters():
            pass

    def averaged(self):
        with self.engine.averaged(), torch.no_grad():
            self.forward(99)

    def begin(self):
        """A new engine, from fully_shard to its close."""
        made = []
        model = self.model()
        engine = lambda: made.append(zero.fully_shard(model, configuration(3), units=None)) or made[-1]
        self.run("open", engine)
        if not made:
            engine()
        try:
            self.run("first", lambda: made[0].model(torch.ones(4, 96)))
            made[0].backward(loss_of_vectors(made[0].model, 0))
        except zero.ZeroError as error:  # the model is as it was
            assert "call engine.close(), then fully_shard again" in str(error), error
            made.pop().close()
            engine()
            made[0].backward(loss_of_vectors(model, 0))
        made[0].step()
        digest = made[0].hash()
        self.run("close", made[0].close)
        made[0].close()
        return digest

    def close(self):
        self.engine.close()
        self.other.close()
        self.directory.cleanup()


TRAININGS = (
    lambda: Training(0, False, ema={"decay": 0.5}),
    lambda: Training(3, True, ema={"decay": 0.5}),
    lambda: Training(3, False, ema={"decay": 0.5}, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 20}}),
)
OFTEN = ("forward", "evaluate", "backward", "step", "park", "unpark", "whole", "averaged")
PHASES = (*OFTEN, "write", "load")
RARE = ("open", "first", "close")  # these make an engine


class Interrupts(unittest.TestCase):
    def test_everywhere(self):
        torch.set_num_threads(1)
        chance, failed, trainings = random.Random(SEED), [], [make() for make in TRAININGS]
        digest, longest, points = trainings[0].begin(), dict.fromkeys(PHASES + RARE, 1000), 0
        while points < POINTS:
            kind = chance.randrange(len(trainings))
            training, rare = trainings[kind], chance.random() < 0.2
            training.points = planned = {p: chance.randint(1, longest[p]) for p in (RARE if rare else PHASES) if rare or chance.random() < (0.9 if p in OFTEN else 0.1)}
            planned = dict(planned)
            training.where = []
            try:
                if rare:
                    assert training.begin() == digest, "other weights"
                else:
                    training.step()
                    training.rest()
            except Exception as error:
                failed.append(f"{kind}: {type(error).__name__} {error}, after {training.where}")
                print(failed[-1], flush=True)
                training.steps = STEPS
            for phase, at in planned.items():
                longest[phase] = at if phase in training.points else max(longest[phase], at + 500)
            points += len(training.where)
            if training.steps >= STEPS:
                training.close()
                trainings[kind] = TRAININGS[kind]()
        for training in trainings:
            training.close()
        self.assertEqual(failed, [], f"seed {SEED}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    print(f"{POINTS} points, seed {SEED}", flush=True)
    unittest.main(argv=sys.argv[:1])
