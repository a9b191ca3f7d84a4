"""Models and trainings of Transformers: its own tests of DeepSpeed and FSDP, and Accelerate's."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from models import KINDS, MLP, images, loss_of_lm, loss_of_vectors, tokens
from peers.scenarios import close, directory, norm, optimizer_of, same_weights, scenario, seeded, sharded, train_both

small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    text = small | {"vocab_size": 256, "max_position_embeddings": 16, "projection_dim": 16, "eos_token_id": 2}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=small | {"image_size": 32, "patch_size": 8}, projection_dim=16))


def loss_of_clip(model: Any, batch: int) -> Any:
    return model(input_ids=tokens(batch), pixel_values=images(batch)[0], return_loss=True).loss


def whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
    ids = {"vocab_size": 256, "pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
    return WhisperForConditionalGeneration(WhisperConfig(**sizes, **ids))


def loss_of_whisper(model: Any, batch: int) -> Any:
    sounds = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(batch))
    return model(input_features=sounds, labels=tokens(batch)[:2, :8]).loss


if find_spec("transformers"):

    @scenario
    def decoders_that_recompute() -> None:
        """gradient_checkpointing_enable, reentrant or not. losses_test.py has decoders, encoders and both without it."""
        for reentrant in (False, True):

            def make(reentrant: bool = reentrant) -> Any:
                model = KINDS["llama"].make().train()
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                model.enable_input_require_grads()
                return model

            train_both(make, loss_of_lm, stages=(3,))

    @scenario
    def an_encoder_of_sounds_with_a_decoder() -> None:
        train_both(whisper, loss_of_whisper, stages=(3,))

    @scenario
    def pictures_and_texts() -> None:
        train_both(clip, loss_of_clip, stages=(3,))

    @scenario
    def tokens_generated_between_steps() -> None:
        """Greedy, sampled, by beams; before the first step, and after it."""
        kinds: Any = ({}, {"do_sample": True, "temperature": 0.9}, {"num_beams": 3}, {"use_cache": True})
        engine, plain = sharded(seeded(KINDS["llama"].make)), seeded(KINDS["llama"].make)
        optimizer = optimizer_of(plain.parameters())
        for batch in range(2):
            for options in kinds:
                draw = lambda model: model.generate(
                    tokens(9)[:2, :4], max_new_tokens=5, eos_token_id=None, **{"do_sample": False} | options
                )
                got, expected = seeded(lambda: draw(engine.model)), seeded(lambda: draw(plain))
                assert got.tolist() == expected.tolist(), options
            engine.backward(loss_of_lm(engine.model, batch))
            engine.step()
            loss_of_lm(plain, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        same_weights(engine, plain)

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, i: int) -> Any:
            t = torch.randint(5, 256, (12,), generator=torch.Generator().manual_seed(i))
            return {"input_ids": t, "labels": t}

    def arguments(**more: Any) -> Any:
        from transformers import TrainingArguments

        base: dict[str, Any] = {
            "per_device_train_batch_size": 2,
            "max_steps": 4,
            "learning_rate": 1e-3,
            "report_to": [],
            "disable_tqdm": True,
        }
        base |= {"use_cpu": True, "save_strategy": "no", "logging_steps": 1, "warmup_steps": 2, "weight_decay": 0.1}
        return TrainingArguments(str(directory()), **base | more)

    @scenario
    def the_trainer() -> None:
        """Beside transformers' own: accumulation, a schedule, evaluations, label smoothing, checkpoints; then resumed."""
        import transformers
        import zero.trainer

        kinds: Any = (
            {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"},
            {"eval_strategy": "steps", "eval_steps": 2, "label_smoothing_factor": 0.1, "gradient_checkpointing": True},
            {"optim": "sgd", "max_grad_norm": 0.1},
        )
        for more in kinds:
            logs = []
            for kind, config in (
                (transformers.Trainer, {}),
                (zero.trainer.Trainer, {"zero_config": {"zero_optimization": {"stage": 3}}}),
            ):
                model = seeded(KINDS["llama"].make)
                t = kind(model, arguments(**more), train_dataset=Rows(), eval_dataset=Rows(), **config)
                t.train()
                logs.append(
                    [
                        row[key]
                        for row in t.state.log_history
                        for key in ("loss", "eval_loss", "grad_norm", "learning_rate")
                        if key in row
                    ]
                )
                if config:
                    t.engine.close()
            close(torch.tensor(logs[1]), torch.tensor(logs[0]), f"log of {more}", 2e-4)

    @scenario
    def a_trainer_that_is_resumed() -> None:
        import zero.trainer

        place, ends = directory(), []
        for resume in (None, str(place / "checkpoint-2")):
            args = arguments(save_strategy="steps", save_steps=2)
            args.output_dir = str(place)
            t = zero.trainer.Trainer(seeded(KINDS["llama"].make, len(ends)), args, train_dataset=Rows(), zero_config={})
            t.train(resume_from_checkpoint=resume)
            ends.append(t.engine.hash())
            t.engine.close()
        assert ends[0] == ends[1]


if find_spec("accelerate"):

    @scenario
    def what_accelerate_prepares() -> None:
        """Optimizer, schedule, loader and model; its backward divides the loss."""
        from accelerate import Accelerator

        engine, plain = sharded(seeded(MLP)), seeded(MLP)
        theirs = optimizer_of(plain.parameters())
        accelerator = Accelerator(cpu=True)
        schedule = LambdaLR(engine.optimizer, lambda k: 1 / (k + 1))
        optimizer, schedule, loader = accelerator.prepare(engine.optimizer, schedule, torch.utils.data.DataLoader(range(4)))
        their_schedule = LambdaLR(theirs, lambda k: 1 / (k + 1))
        for (batch,) in loader:
            engine.backward(loss_of_vectors(engine.model, int(batch)))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            loss = loss_of_vectors(plain, int(batch))
            loss.backward()
            theirs.step()
            their_schedule.step()
            theirs.zero_grad()
            assert accelerator.gather(loss.detach()).numel() == 1
        same_weights(engine, plain)

        from accelerate import Accelerator

        engine, plain = sharded(seeded(MLP)), seeded(MLP)
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(engine.model)
        for batch in range(2):
            accelerator.backward(loss_of_vectors(model, batch))
            plain.zero_grad()
            loss_of_vectors(plain, batch).backward()
            close(engine.step().grad_norm, norm(plain), "norm")
            plain.load_state_dict(engine.state_dict())
