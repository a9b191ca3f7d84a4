"""Hugging Face's Trainer on the engine, beside itself without it: losses, evaluation, checkpoints. ranks_test.py has two ranks."""

import functools
import importlib.util
import json
import tempfile
import types
import unittest
from pathlib import Path

import numpy
import torch
import transformers
from models import images, made, tokens

import zero
from zero.trainer import Trainer

ROWS = [{"input_ids": t, "labels": t} for step in range(5) for t in tokens(step)]  # 20 rows
STAGE3 = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}


def trainer(place, kind="gpt2", shard=True, config=None, more=None, kind_of_trainer=None, **options):
    """4 rows a micro-batch, 2 micro-batches a step: the last step of an epoch has only one."""
    values = {"max_steps": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-3}
    values |= {"logging_steps": 1, "weight_decay": 0.1, "warmup_steps": 3, "use_cpu": True, "disable_tqdm": True}
    values |= {"save_strategy": "no", "report_to": "none", "dataloader_pin_memory": False}
    args = transformers.TrainingArguments(str(place), **(values | options))
    data = {"train_dataset": ROWS, "eval_dataset": ROWS[:7], **(more or {})}
    model = kind() if callable(kind) else made(kind)
    if not shard:
        return (kind_of_trainer or transformers.Trainer)(model, args, **data)
    return (kind_of_trainer or Trainer)(model, args, zero_config=config or STAGE3, **data)


def logged(trainer, *keys):
    return [row[key] for row in trainer.state.log_history for key in keys if key in row]


class TrainerTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = Path(self.dir.name)

    def tearDown(self):
        self.dir.cleanup()

    def assertLogs(self, ours, plain, *keys, delta=5e-6):
        a, b = logged(ours, *keys), logged(plain, *keys)
        self.assertTrue(a and len(a) == len(b), (a, b))
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=delta)

    def test_losses(self):
        for kind, clip in (("gpt2", 1.0), ("llama", 0.0)):
            both = [trainer(self.path, kind, shard, eval_strategy="steps", eval_steps=3, max_grad_norm=clip) for shard in (True, False)]
            for t in both:
                t.train()
            self.assertLogs(*both, "loss", "eval_loss")
            self.assertLogs(*both, "learning_rate", delta=0)
            self.assertLogs(*both, "grad_norm", delta=1e-4)
            both[0].engine.close()

    def test_resume(self):
        """From the checkpoint of step 4, in the middle of an epoch, at another stage: the same bits; the best model at the end."""
        options = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
        whole = trainer(self.path / "whole", **options)
        whole.train()
        second = trainer(self.path / "second", config={"zero_optimization": {"stage": 1}}, load_best_model_at_end=True, **options)
        second.train(resume_from_checkpoint=str(self.path / "whole" / "checkpoint-4"))
        self.assertEqual(logged(second, "loss", "eval_loss"), logged(whole, "loss", "eval_loss"))
        self.assertEqual(second.engine.hash(), whole.engine.hash())
        model = transformers.AutoModelForCausalLM.from_pretrained(self.path / "whole" / "checkpoint-8")
        state = whole.engine.state_dict()
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)

    def test_best_of_models_alone(self):
        """save_only_model: the best model comes from its weights' file."""
        options = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4, "learning_rate": 0.1}
        t = trainer(self.path, save_only_model=True, load_best_model_at_end=True, **options)
        t.train()
        best = min(logged(t, "eval_loss"))
        self.assertLess(best, logged(t, "eval_loss")[-1])
        self.assertAlmostEqual(t.evaluate()["eval_loss"], best, delta=1e-6)

    def test_buffers(self):
        """Statistics of batch norms are those of the checkpoint: after a resume, and of the best model, from its checkpoint or its files."""
        from transformers import ResNetConfig, ResNetForImageClassification

        def make():
            torch.manual_seed(0)
            return ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=2))

        rows = [{"pixel_values": images(i, side=16)[0][0] * 2 + 1, "labels": i % 2} for i in range(16)]
        options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 1}
        options |= {"max_steps": 6, "learning_rate": 0.3, "lr_scheduler_type": "constant", "warmup_steps": 0}
        made_by = lambda place, **more: trainer(self.path / place, make, more={"train_dataset": rows, "eval_dataset": rows}, **(options | more))
        whole = made_by("whole")
        whole.train()
        state = whole.engine.state_dict()
        second = made_by("second", save_strategy="no")
        second.train(resume_from_checkpoint=str(self.path / "whole" / "checkpoint-4"))
        again = second.engine.state_dict()
        for name, value in state.items():
            self.assertTrue(torch.equal(again[name], value), name)
        read = ResNetForImageClassification.from_pretrained(self.path / "whole" / "checkpoint-6").state_dict()
        for name, value in state.items():
            self.assertTrue(torch.equal(read[name], value), name)
        for only_model in (False, True):
            best = made_by(f"best{only_model}", load_best_model_at_end=True, save_only_model=only_model, greater_is_better=True)
            best.train()
            loss = max(logged(best, "eval_loss"))
            self.assertGreater(loss, logged(best, "eval_loss")[-1])
            self.assertAlmostEqual(best.evaluate()["eval_loss"], loss, delta=1e-6)
            steps = {t.item() for name, t in best.engine.state_dict().items() if name.endswith("num_batches_tracked")}
            self.assertEqual(steps, {int(best.state.best_model_checkpoint.rpartition("-")[2])})

    @unittest.skipUnless(importlib.util.find_spec("peft"), "no peft")
    def test_adapters(self):
        """PEFT reads what is saved of an adapter, and of modules beside it; resume and the best model go on with it."""
        import peft

        for more in ({}, {"modules_to_save": ["lm_head"]}, {"bias": "lora_only"}):
            config = peft.LoraConfig(target_modules=["q_proj"], r=2, **more)
            make = lambda: peft.get_peft_model(made("llama"), config)
            options = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4, "learning_rate": 0.1}
            torch.manual_seed(1)
            whole = trainer(self.path / "whole", make, **options)
            whole.train()
            torch.manual_seed(2)
            second = trainer(self.path / "second", make, save_strategy="no")
            second.train(resume_from_checkpoint=str(self.path / "whole" / "checkpoint-4"))
            self.assertEqual(second.engine.hash(), whole.engine.hash())
            whole.save_model(str(self.path / "out"))
            read = peft.PeftModel.from_pretrained(made("llama"), self.path / "out").state_dict()
            trained = {name: t for name, t in whole.engine.state_dict().items() if "lora_" in name or "modules_to_save" in name}
            self.assertGreater(len(trained), 0)
            for name, value in trained.items():
                self.assertTrue(torch.equal(read[name], value), name)
            for only_model in (True,) if more else (False, True):  # a checkpoint of the engine is loaded above
                torch.manual_seed(1)
                best = trainer(self.path / f"best{only_model}", make, load_best_model_at_end=True, save_only_model=only_model, **options)
                best.train()
                self.assertAlmostEqual(best.evaluate()["eval_loss"], min(logged(best, "eval_loss")), delta=1e-6)

    def test_head_read_by_a_loss(self):
        """As TRL's trainers do: they give a model a forward that reads the head's weight itself, and generate before the first of these."""

        def make():
            model = made("llama")
            original = model.forward

            @functools.wraps(type(model).forward)
            def forward(self, *args, fused_lm_head=False, labels=None, **more):
                if not fused_lm_head:
                    return original(*args, labels=labels, **more)
                logits = self.model(*args, **more).last_hidden_state[:, :-1] @ self.lm_head.weight.T
                return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}

            model.forward = types.MethodType(forward, model)
            return model

        class Loss:
            def compute_loss(self, model, inputs, **_):
                with torch.no_grad():
                    model(**inputs)
                return model(**inputs, fused_lm_head=True)["loss"]

        ours = type("Ours", (Loss, Trainer), {})
        plain = type("Plain", (Loss, transformers.Trainer), {})
        both = [trainer(self.path, make, shard, kind_of_trainer=ours if shard else plain) for shard in (True, False)]
        for t in both:
            t.train()
        self.assertLogs(*both, "loss")

    def test_interrupted(self):
        """A training that ends between the micro-steps of a step leaves nothing to the next one."""

        class Stop(transformers.TrainerCallback):
            def on_substep_end(self, args, state, control, **_):
                control.should_training_stop = state.global_step == 3
                return control

        both = [trainer(self.path, shard=shard, more={"callbacks": [Stop()]}) for shard in (True, False)]
        for t in both:
            for _ in range(2):
                t.train()
        self.assertLogs(*both, "loss")

    def test_bf16(self):
        t = trainer(
            self.path, bf16=True, config={"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
        )
        self.assertEqual(t.engine.dtype, torch.bfloat16)
        self.assertEqual(t.engine.setting("optimizer.params.lr"), "0.001")
        t.train()
        self.assertLess(logged(t, "loss")[-1], logged(t, "loss")[0])

    def test_parts_of_a_configuration(self):
        """What a block leaves out or leaves "auto" comes from the TrainingArguments, if its optimizer has it."""
        options = {"learning_rate": 2e-5, "weight_decay": 0.2, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}
        ours = {"lr": 2e-5, "weight_decay": 0.2, "betas": [0.8, 0.95], "eps": 1e-6}
        some = {"lr": 2e-5, "weight_decay": 0.2}
        for given, params in (
            ({"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}, ours),
            ({"type": "adamw", "params": {"lr": 3e-4, "eps": None}}, ours | {"lr": 3e-4}),
            ({"type": "FusedAdam", "params": {"torch_adam": True}}, ours | {"torch_adam": True}),
            ({"type": "Lamb"}, ours),
            ({"type": "lion", "params": {"betas": [0.9, 0.99], "eps": "auto"}}, some | {"betas": [0.9, 0.99]}),
            ({"type": "FusedLion"}, some | {"betas": [0.8, 0.95]}),
            ({"type": "SGD", "params": {"momentum": 0.9, "betas": "auto"}}, some | {"momentum": 0.9}),
            ({"type": "Adagrad"}, some | {"eps": 1e-10}),
        ):
            engine = trainer(self.path, config={"optimizer": given}, **options).engine
            found = {key: engine.setting(f"optimizer.params.{key}") for key in params}
            self.assertEqual({key: json.loads(text) for key, text in found.items()}, params, given)
        for key, dtype, block in (
            ("bf16", torch.bfloat16, {"check_grad_overflow": True}),
            ("fp16", torch.float16, {"initial_scale_power": 12}),
        ):
            for given in (block, "auto", {"enabled": "auto"}, None):
                self.assertEqual(trainer(self.path, config={key: given}, **{key: True}).engine.dtype, dtype)

    def test_optim(self):
        """Optimizers of `optim`, beside plain PyTorch's."""
        for optim in ("adamw_torch_fused", "adamw_torch", "sgd", "adagrad", "rmsprop"):
            both = [trainer(self.path, shard=shard, optim=optim, learning_rate=2e-2) for shard in (True, False)]
            for t in both:
                t.train()
            self.assertLogs(*both, "loss", delta=1e-5)
        config = {"optimizer": {"type": "Adam"}}
        self.assertEqual(trainer(self.path, optim="rmsprop", config=config).engine.setting("optimizer.type"), '"Adam"')

    def test_optimizers_of_the_program(self):
        """Those that the Trainer is given."""

        class Own:
            def __init__(self, *args, **options):
                optimizer = torch.optim.SGD(args[0].parameters(), lr=0.02, momentum=0.9)
                super().__init__(*args, optimizers=(optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)), **options)

        ours, plain = type("Ours", (Own, Trainer), {}), type("Plain", (Own, transformers.Trainer), {})
        both = [trainer(self.path, shard=shard, kind_of_trainer=ours if shard else plain) for shard in (True, False)]
        for t in both:
            t.train()
        self.assertLogs(*both, "loss", "learning_rate")

    def test_two_optimizers(self):
        """One of the Trainer's, and one of the configuration: neither is left out without a word."""
        model = made("gpt2")
        for more in (
            {"optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None)},
            {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})},
        ):
            with self.assertRaisesRegex(ValueError, "the Trainer has an optimizer, and zero_config has `optimizer`: leave out one of the two"):
                trainer(self.path, lambda: model, config={"optimizer": {"type": "AdamW"}}, more=more)

    def test_mistakes(self):
        with self.assertRaisesRegex(ValueError, "`optimizer` of the configuration has no type: give it one"):
            trainer(self.path, config={"optimizer": {"params": {"lr": 1e-4}}})
        with self.assertRaisesRegex(ValueError, "leave out fp16_full_eval and bf16_full_eval"):
            trainer(self.path, bf16_full_eval=True)
        twice = self.path / "twice.json"
        twice.write_text('{"zero_optimization": {"stage": 2, "overlap_comm": true, "stage": 3}}')
        with self.assertRaisesRegex(zero.ZeroError, r'twice\.json:1:58: key "stage" stands twice'):
            trainer(self.path, config=str(twice))
        with self.assertRaisesRegex(zero.ZeroError, r"a\.b\[1\] of the configuration is \{1\}, a set"):
            trainer(self.path, config={"a": {"b": [0, {1}]}})
        with self.assertRaisesRegex(zero.ZeroError, "train_batch_size"):
            trainer(self.path, config={"train_micro_batch_size_per_gpu": 3})

    def test_schedule_of_the_configuration(self):
        """As with DeepSpeed: "auto" is of the arguments, and a resume goes on with the same rates."""
        schedule = {"type": "WarmupDecayLR", "params": dict.fromkeys(("warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")}
        config = STAGE3 | {"scheduler": schedule}
        options = {"max_steps": -1, "num_train_epochs": 3, "weight_decay": 0.0}
        whole = trainer(self.path, config=config, save_strategy="steps", save_steps=4, **options)
        whole.train()
        rates = logged(whole, "learning_rate")
        self.assertEqual(len(rates), 9)
        for i, rate in enumerate(rates[4:], 3):
            self.assertAlmostEqual(rate, 1e-3 * (9 - i) / (9 - 3), delta=1e-9)
        second = trainer(self.path / "second", config=config, **options)
        second.train(resume_from_checkpoint=str(self.path / "checkpoint-4"))
        self.assertEqual(logged(second, "learning_rate"), rates)
        self.assertEqual(second.engine.hash(), whole.engine.hash())
        schedule["params"] |= {"warmup_num_steps": 2}
        t = trainer(self.path, config=config, max_steps=5)
        t.train()
        self.assertAlmostEqual(logged(t, "learning_rate")[-1], 1e-3 * 2 / 3, delta=1e-9)

    def test_contradictions(self):
        """The configuration counts, and a warning names what the arguments say."""
        config = {"gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1, "lr": 2e-3}}}
        with self.assertWarnsRegex(UserWarning, r"gradient_clipping 0\.5 \(not 1\.0\), optimizer\.params\.lr 0\.002 \(not 0\.001\)$"):
            self.assertEqual(trainer(self.path, config=config).engine.setting("gradient_clipping"), "0.5")

    def test_values_of_python(self):
        """Paths, types of PyTorch and numbers of NumPy, as programs write them into a dictionary."""
        config = {"gradient_clipping": numpy.float32(0.5), "data_types": {"grad_accum_dtype": torch.float32}}
        config["zero_optimization"] = {"stage": numpy.int64(3), "overlap_comm": numpy.bool_(True), "reduce_bucket_size": torch.tensor(1000)}
        config["zero_optimization"]["offload_optimizer"] = {"device": "nvme", "nvme_path": self.path}
        engine = trainer(self.path, config=config, max_grad_norm=0.5).engine
        self.assertEqual(engine.setting("gradient_clipping"), "0.5")
        self.assertEqual(engine.setting("zero_optimization.stage"), "3")
        self.assertEqual(engine.setting("zero_optimization.offload_optimizer.nvme_path"), json.dumps(str(self.path)))

    def test_edited_file(self):
        """A file with comments, and a path that is no str, are those of fully_shard."""
        edited = self.path / "edited.json"
        edited.write_text("// by hand\n{zero_optimization: {'stage': 2,}, # of 3\n}")
        self.assertEqual(trainer(self.path, config=edited).engine.setting("zero_optimization.stage"), "2")
        edited.write_text("# by hand\n{zero_optimization: {'stage' 2}}")
        with self.assertRaisesRegex(zero.ZeroError, r"edited\.json:2:30: a colon is expected after the key"):
            trainer(self.path, config=edited)

    def test_skipped_steps(self):
        """A step that overflows leaves the schedule where it is."""
        t = trainer(self.path, config={"fp16": {"enabled": True, "initial_scale_power": 20}}, gradient_accumulation_steps=1)
        t.train()
        rates, skipped = logged(t, "learning_rate"), 8 - t.engine.steps
        self.assertGreater(skipped, 0)
        self.assertEqual(rates[: skipped + 1], [0] * (skipped + 1))
        self.assertGreater(rates[skipped + 1], 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
