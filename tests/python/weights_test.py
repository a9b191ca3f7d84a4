"""The values that a model begins with, and the files that keep it: load_pretrained, save_pretrained, buffers, names."""

import contextlib
import importlib.util
import logging
import os
import tempfile
import unittest
import warnings
from copy import deepcopy
from pathlib import Path

import torch
import torch.nn.functional as F
from models import KINDS, MLP, Block, configuration, images, loss_of_images, loss_of_lm, loss_of_vectors, made, vectors
from modules_test import Case
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import zero

HAS_PEFT = importlib.util.find_spec("peft")


def on(device, make):
    with torch.device(device):
        return make()


def drawn(model):
    """No value is that of another draw."""
    torch.manual_seed(5)
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            nn.init.uniform_(t, 0.5, 1)
    return model


@contextlib.contextmanager
def said():
    """The warnings and lines of the log of zero that come inside."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("zero").addHandler(handler)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield lines
    lines += [str(w.message) for w in found]
    logging.getLogger("zero").removeHandler(handler)


class Files(Case):
    def setUp(self) -> None:
        super().setUp()
        self.dir = tempfile.TemporaryDirectory()
        self.path = Path(self.dir.name)

    def tearDown(self) -> None:
        super().tearDown()
        self.dir.cleanup()

    def assertSame(self, state, expected, rename=lambda name: name):
        for name, value in expected.items():
            self.assertTrue(torch.equal(state[rename(name)], value), name)

    def saved(self, model):
        """A directory of this model, and its state."""
        directory = self.path / f"saved{len(os.listdir(self.path))}"
        directory.mkdir()
        save_file({name: t.clone() for name, t in model.state_dict().items()}, directory / "model.safetensors")
        return directory, {name: t.clone() for name, t in model.state_dict().items()}


class Adapter(nn.Module):
    """As LoRA: the layer of a model moves into a module beside it, which is on no meta device."""

    def __init__(self, layer):
        super().__init__()
        self.base = layer
        self.down = nn.Linear(layer.in_features, 2, device="cpu")
        self.up = nn.Linear(2, layer.out_features, device="cpu")

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapted(model):
    for block in model.blocks:
        block.a = Adapter(block.a)
    return model


class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


class Taken(nn.Module):
    """Takes a model's parameters, and not its modules."""

    def __init__(self, model):
        super().__init__()
        self.weight, self.bias = model.head.weight, model.head.bias

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Pretrained(Files):
    def test_what_comes_around_a_model(self):
        """The weights are those of the files, whatever a program makes of the model before fully_shard."""
        ways = {
            "model": (lambda m: m, lambda name: name),
            "module": (Around, lambda name: f"model.{name}"),
            "compiled": (lambda m: torch.compile(m, backend="eager"), lambda name: f"_orig_mod.{name}"),
            "copy": (deepcopy, lambda name: name),
            "adapters": (adapted, lambda name: name.replace(".a.", ".a.base.")),
            "both": (lambda m: Around(adapted(deepcopy(m))), lambda name: "model." + name.replace(".a.", ".a.base.")),
        }
        directory, expected = self.saved(drawn(MLP()))
        for way, (around, rename) in ways.items():
            for device in ("cpu", "meta"):
                with self.subTest(way=way, device=device), said() as lines:
                    model = around(zero.load_pretrained(on(device, MLP), directory))
                    self.assertSame(self.engine(model, 1 if device == "cpu" else 3).state_dict(), expected, rename)
                self.assertEqual([line for line in lines if "load_pretrained" in line or "first values" in line], [])
        for device in ("cpu", "meta"):
            with said() as lines:
                state = self.engine(Taken(zero.load_pretrained(on(device, MLP), directory))).state_dict()
            self.assertTrue(torch.equal(state["weight"], expected["head.weight"]))
            self.assertEqual(any("no parameter took blocks.0.a.bias" in line for line in lines), device == "meta")

    def test_a_model_that_nobody_takes(self):
        """A model on the meta device that is made again, after load_pretrained of the first one, is no random model."""
        directory, expected = self.saved(drawn(MLP()))
        first = zero.load_pretrained(on("meta", MLP), directory)
        with self.assertRaisesRegex(ValueError, r"load_pretrained has named .* for another MLP .* parameter model\.blocks\.0\.a\.weight is on"):
            self.engine(Around(on("meta", MLP))).state_dict()
        self.assertSame(self.engine(first).state_dict(), expected)
        self.engine(on("meta", MLP)).commit()  # the first one has its values

    def test_values_of_the_program_after_that(self):
        """Whoever replaces a parameter that was on the meta device gives it its value, and a warning says so."""
        directory, expected = self.saved(drawn(MLP()))
        model = zero.load_pretrained(on("meta", MLP), directory)
        model.head.to_empty(device="cpu")
        nn.init.ones_(model.head.weight)
        with said() as lines:
            state = self.engine(model).state_dict()
        self.assertSame(state, {name: t for name, t in expected.items() if "head" not in name} | {"head.weight": torch.ones(10, 96)})
        for name in ("head.weight", "head.bias"):
            self.assertTrue(any(f"{name} is not on the meta device any more, so its value is the program's" in line for line in lines), lines)

    @unittest.skipUnless(HAS_PEFT, "no peft")
    def test_adapters_that_are_off_at_first(self):
        """PEFT freezes adapters while they are off, as for the first forward of a loss that compares with the base model."""
        import peft

        trained = []
        for shard in (False, True):
            torch.manual_seed(0)
            model = peft.get_peft_model(made("llama"), peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
            engine = zero.fully_shard(model, configuration(3, gradient_clipping=0)) if shard else None
            with torch.no_grad(), model.disable_adapter():
                base = loss_of_lm(model, 0)
            loss = (loss_of_lm(model, 0) - base).square()
            engine.backward(loss) if shard else loss.backward()
            if shard:
                engine.step()
            else:
                torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1).step()
            trained.append({k: t.clone() for k, t in (engine or model).state_dict().items()})
        for name, value in trained[0].items():
            self.assertTrue(torch.allclose(value, trained[1][name], atol=1e-6), name)

    @unittest.skipUnless(HAS_PEFT, "no peft")
    def test_lora(self):
        """PEFT's adapters around a model of transformers, which train as PEFT's do; on the meta device, too."""
        import peft

        model = drawn(made("llama"))
        model.save_pretrained(self.path / "base")
        for device in ("cpu", "meta"):
            for more in ({}, {"modules_to_save": ["lm_head"]}):
                base = zero.load_pretrained(on(device, KINDS["llama"].make), self.path / "base")
                wrapped = on(device, lambda: peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], r=2, **more)))
                engine = self.engine(wrapped.train())
                state = engine.state_dict()
                place = lambda name: name.replace("q_proj.", "q_proj.base_layer.").replace("lm_head.", "lm_head.original_module.")
                place = place if more else lambda name: name.replace("q_proj.", "q_proj.base_layer.")
                self.assertSame(state, model.state_dict(), lambda name: "base_model.model." + place(name))
                if more:
                    copied = state["base_model.model.lm_head.modules_to_save.default.weight"]
                    self.assertTrue(torch.equal(copied, model.state_dict()["lm_head.weight"]))
                adapters = {name: t.abs().max().item() for name, t in state.items() if "lora_" in name}
                for name, largest in adapters.items():
                    self.assertEqual(largest > 0, "lora_A" in name, (device, name, largest))
                self.assertAlmostEqual(KINDS["llama"].loss(wrapped, 0).item(), KINDS["llama"].loss(model, 0).item(), delta=1e-5)
                self.train(engine, range(2), KINDS["llama"].loss)
                place = self.path / f"adapter{device}{len(more)}"
                engine.save_pretrained(place)
                read = peft.PeftModel.from_pretrained(deepcopy(model), place)
                trained = {name: t for name, t in engine.state_dict().items() if "lora_" in name or "modules_to_save" in name}
                self.assertSame(read.state_dict(), trained)
                self.assertGreater(len(load_file(place / "adapter_model.safetensors")), 0)
        with torch.device("meta"):
            refused = peft.get_peft_model(KINDS["llama"].make(), peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]))
        with self.assertRaisesRegex(ValueError, "is on the meta device, and only LoRA's get first values there: make the adapter on the CPU"):
            self.engine(refused).commit()

    def test_what_the_files_lack(self):
        directory, expected = self.saved(drawn(MLP()))

        class WithHead(MLP):
            def __init__(self):
                super().__init__()
                self.head, self.more = nn.Linear(96, 3), nn.Linear(96, 10)

        save_file({name: t for name, t in expected.items() if "head" not in name}, directory / "model.safetensors")
        for device in ("cpu", "meta"):
            with said() as lines:
                state = self.engine(zero.load_pretrained(on(device, WithHead), directory)).state_dict()
            self.assertSame(state, {name: t for name, t in expected.items() if "head" not in name})
            self.assertTrue(0 < state["head.weight"].std() < 1)
            self.assertTrue(any("has head.weight, head.bias, more.weight, more.bias: first values as" in line for line in lines), lines)
            with self.assertRaisesRegex(ValueError, "no file in .* has head.weight, head.bias, .*: leave out strict=True"):
                zero.load_pretrained(on(device, WithHead), directory, strict=True)
            with self.assertRaisesRegex(ValueError, r"blocks\.0\.a\.weight is \[96, 96\] in .*, and \[64, 64\] in the model"):
                zero.load_pretrained(on(device, lambda: nn.ModuleDict({"blocks": nn.ModuleList([Block(64)])})), directory)
            with self.assertRaisesRegex(ValueError, "no file in .* has weight, bias: give load_pretrained the model of these files"):
                zero.load_pretrained(on(device, lambda: nn.Linear(2, 2)), directory)
        (self.path / "empty").mkdir()
        with self.assertRaisesRegex(ValueError, "has neither model.safetensors nor model.safetensors.index.json: give what"):
            zero.load_pretrained(MLP(), self.path / "empty")

    def test_files_of_transformers(self):
        """Files have other names than models whose modules transformers fuses or renames; they come in, and go out again."""
        import transformers as t

        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64}
        conv = {"conv_dim": (16,), "conv_stride": (5,), "conv_kernel": (10,), "num_feat_extract_layers": 1}
        conv |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
        moe = {"num_experts": 12, "num_key_value_heads": 2, "moe_intermediate_size": 16, "head_dim": 8}
        kinds = {
            "experts": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**moe, **small)),
            "weight_g": lambda: t.Wav2Vec2ForCTC(t.Wav2Vec2Config(**conv, **small)),
            "base": lambda: t.BertForSequenceClassification(t.BertConfig(**small)),
            "tied": KINDS["t5"].make,
        }
        for kind, make in kinds.items():
            model = drawn(make())
            first, again = self.path / kind, self.path / f"{kind}.out"
            model.save_pretrained(first, max_shard_size="20KB")
            expected = type(model).from_pretrained(first).state_dict()
            for device in ("cpu", "meta"):
                engine = self.engine(zero.load_pretrained(on(device, make), first))
                self.assertSame(engine.state_dict(), expected)
                engine.save_pretrained(again)
                self.assertSame(type(model).from_pretrained(again).state_dict(), expected)
            names = lambda place: {name for file in place.glob("*.safetensors") for name in safe_open(file, "pt").keys()}
            self.assertEqual(names(again), names(first))

    def test_what_a_later_save_replaces(self):
        """Into a directory of shards: all readers get the later weights, and nothing of the earlier is left."""
        for name, size in (("llama", "20KB"), ("gpt2", "50KB")):
            place = self.path / name
            KINDS[name].make().save_pretrained(place, max_shard_size=size)
            engine = self.engine(zero.load_pretrained(on("meta", KINDS[name].make), place), 2)
            self.train(engine, range(2), KINDS[name].loss)
            engine.save_pretrained(place)
            self.assertSame(type(engine.model).from_pretrained(place).state_dict(), engine.state_dict())
            self.assertEqual({p.name for p in place.glob("model*")}, {"model.safetensors"})
            (place / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "gone"}}')  # of another program
            self.assertEqual(self.engine(zero.load_pretrained(KINDS[name].make(), place)).hash(), engine.hash())

    def test_compiled(self):
        """Files and checkpoints of a compiled model, or of one with compiled blocks, have the names of the model."""
        plain = self.engine(drawn(MLP()))
        blocks = drawn(MLP())
        blocks.blocks[1] = torch.compile(blocks.blocks[1], backend="eager")
        for model in (torch.compile(drawn(MLP()), backend="eager"), blocks):
            engine, place = self.engine(model), self.path / str(len(self.engines))
            self.assertEqual(engine.hash(), plain.hash())
            engine.save_pretrained(place)
            self.assertSame(load_file(place / "model.safetensors"), plain.state_dict())
            other = self.engine(zero.load_pretrained(on("meta", lambda: torch.compile(MLP(), backend="eager")), place))
            self.assertEqual(other.hash(), plain.hash())
            engine.save(place / "run")
            other = self.engine(MLP())
            other.load(place / "run")
            self.assertEqual(other.hash(), plain.hash())


class Kept(nn.Module):
    """Buffers of a type, two of them the same; one that is not kept, and a state that is no tensor."""

    def __init__(self, value=None, extra=0):
        super().__init__()
        self.layer, self.extra = nn.Linear(96, 10), extra
        self.register_buffer("value", torch.zeros(6) if value is None else value)
        self.register_buffer("same", self.value)
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.layer(x)

    def get_extra_state(self):
        return {"extra": self.extra}

    def set_extra_state(self, state):
        self.extra = state["extra"]


class Buffers(Files):
    def test_of_every_type(self):
        """In the files of save_pretrained, as far as these have the type, and in checkpoints."""
        kinds = "float64 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 bool complex64 float8_e4m3fn float8_e5m2 complex128"
        for kind in kinds.split():
            value = torch.tensor([0, 1, 2, 0, 1, 5]).to(getattr(torch, kind))
            engine, place = self.engine(Kept(value.clone(), extra=7)), self.path / kind
            with said() as lines:
                engine.save_pretrained(place)
            found = load_file(place / "model.safetensors")
            self.assertTrue(any("no place for" in line and "_extra_state" in line for line in lines), lines)
            self.assertEqual("value" in found, kind != "complex128", lines)
            if "value" in found:
                self.assertEqual((found["value"].dtype, found["value"].tolist()), (value.dtype, value.tolist()))
                other = self.engine(zero.load_pretrained(on("meta", lambda: Kept(torch.zeros_like(value))), place))
                self.assertEqual((other.model.value.dtype, other.model.value.tolist()), (value.dtype, value.tolist()))
                self.assertIs(other.model.value, other.model.same)
            engine.save(place / "run")
            other = self.engine(Kept(torch.zeros_like(value)), 1)
            self.assertTrue(other.resume(place / "run"))
            self.assertEqual((other.model.value.tolist(), other.model.extra), (value.tolist(), 7))
            self.assertIs(other.model.value, other.model.same)

    def test_of_batch_norms(self):
        """They come with the files, and with a checkpoint: of any stage, on the meta device, in the background, or its weights alone."""
        engine = self.engine(made("resnet"))
        self.train(engine, range(3), loss_of_images)
        engine.save_pretrained(self.path / "files")
        engine.save(self.path / "run")
        expected = engine.state_dict()
        later = self.train(engine, range(3, 5), loss_of_images)
        engine.model.eval()
        with torch.no_grad():
            right = engine(images(9)[0]).clone()
        for stage, device in ((0, "cpu"), (3, "meta")):
            model = on(device, KINDS["resnet"].make)
            other = self.engine(zero.load_pretrained(model, self.path / "files"), stage)
            self.assertSame(other.state_dict(), expected)
            for weights_only in (True, False):
                other = self.engine(on(device, KINDS["resnet"].make).train(), stage, checkpoint={"async": True})
                other.load(self.path / "run", weights_only=weights_only)
                self.assertSame(other.state_dict(), expected)
            self.assertEqual(self.train(other, range(3, 5), loss_of_images), later)
            other.save(self.path / f"run{stage}")
            self.train(other, range(5, 7), loss_of_images)
            other.save_wait()
            last = self.engine(KINDS["resnet"].make().eval())
            last.load(self.path / f"run{stage}")
            with torch.no_grad():
                self.assertTrue(torch.equal(last(images(9)[0]), right))

    def test_that_are_damaged_or_others(self):
        engine = self.engine(made("resnet"))
        engine.save(self.path / "run")
        (file,) = self.path.glob("run/step_*/program.bin")
        model = made("resnet")
        model.bn.register_buffer("more", torch.ones(1))
        with said() as lines:
            other = self.engine(model)
            other.load(self.path / "run")
        self.assertTrue(any("only one of" in line and "bn.more" in line for line in lines), lines)
        file.write_bytes(file.read_bytes()[:-1])
        with self.assertRaisesRegex(zero.ZeroError, "program.bin is damaged, which has the buffers of this checkpoint"):
            other.load(file.parent)
        file.unlink()
        with self.assertRaisesRegex(zero.ZeroError, "program.bin is missing"):
            other.load(self.path / "run")

    def test_a_state_of_the_programs_own_class(self):
        engine = self.engine(Kept(extra=self))
        with said() as lines:
            engine.save(self.path / "run")
        self.assertTrue(any("a checkpoint keeps tensors, numbers and texts, and so leaves out _extra_state" in line for line in lines))
        other = self.engine(Kept())
        other.load(self.path / "run")
        self.assertEqual(other.hash(), engine.hash())


class Shapes(Files):
    def test_of_none_and_many_dimensions(self):
        """More than the engine's files have, and none; a shape that is not known yet is refused."""

        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.scale = nn.Linear(96, 10), nn.Parameter(torch.tensor(2.0))
                self.many = nn.Parameter(torch.rand(2, 1, 1, 5, 1, 1, 1, 1, 1, 1))

            def forward(self, x):
                return self.layer(x) * self.scale + self.many.flatten()

        torch.manual_seed(0)
        plain = deepcopy(model := Odd())
        engine = self.engine(model)
        self.assertAlmostEqual(loss_of_vectors(model, 0).item(), loss_of_vectors(plain, 0).item(), delta=1e-6)
        engine.save(self.path / "run")
        engine.save_pretrained(self.path / "files")
        for other in (self.engine(zero.load_pretrained(on("meta", Odd), self.path / "files"), 1), self.engine(Odd(), 0)):
            other.load(self.path / "run")
            self.assertSame(other.state_dict(), engine.state_dict())
        with self.assertRaisesRegex(ValueError, "0.weight has no shape yet: call the model once under torch.no_grad"):
            self.engine(nn.Sequential(nn.LazyLinear(10))).commit(vectors(0)[0])


class Shared(Case):
    def test_memory(self):
        """Two tensors in the same memory are refused; neighbours in one memory train."""

        class Pair(nn.Module):
            def __init__(self, share):
                super().__init__()
                self.first, self.last = nn.Linear(96, 96), nn.Linear(96, 96)
                share(self)

            def forward(self, x):
                return self.last(self.first(x))[:, :10]

        def by_data(pair):
            pair.last.weight.data = pair.first.weight.data

        def by_view(pair):
            whole = torch.randn(200 * 96) / 10
            pair.first.weight, pair.last.weight = (nn.Parameter(whole[i * 96 : (i + 96) * 96].view(96, 96)) for i in (0, 95))

        def transposed(pair):
            pair.last.weight = nn.Parameter(pair.first.weight.detach().t())

        def by_buffer(pair):
            pair.register_buffer("flat", pair.last.weight.detach().view(-1))

        def rows(pair):
            whole = torch.randn(192, 96) / 10
            pair.first.weight, pair.last.weight = nn.Parameter(whole[:96]), nn.Parameter(whole[96:])

        def columns(pair):
            whole = torch.randn(96, 192) / 10
            pair.first.weight, pair.last.weight = nn.Parameter(whole[:, :96]), nn.Parameter(whole[:, 96:])

        def frozen(pair):
            by_data(pair)
            pair.requires_grad_(False)
            pair.last.bias.requires_grad_(True)

        for share in (by_data, by_view, transposed, by_buffer):
            with self.assertRaisesRegex(ValueError, r"(first|last)\.weight and (last\.weight|flat) share memory.*: tie them") as caught:
                loss_of_vectors(self.engine(Pair(share)).model, 0)
            del caught
        for share in (rows, columns, frozen):
            torch.manual_seed(0)
            plain = deepcopy(model := Pair(share))
            engine = self.engine(model)
            self.assertAlmostEqual(loss_of_vectors(engine.model, 0).item(), loss_of_vectors(plain, 0).item(), delta=1e-6)
            engine.backward(loss_of_vectors(engine.model, 1))
            engine.step()


if __name__ == "__main__":
    unittest.main()
