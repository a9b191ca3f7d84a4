"""TRL's trainers on an engine, and under DistributedDataParallel, as stage 0: SFT, DPO and GRPO, with and without LoRA."""

import os
from functools import partial

import torch
import torch.distributed as dist
from cases import configuration, fresh, shared_directory, tiny_llama


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def text(seed, length=10):
    letters = torch.randint(0, 26, (length,), generator=torch.Generator().manual_seed(seed))
    return "".join(chr(97 + i) for i in letters)


def reward(completions, **_):
    return [completion.count("a") + 0.1 * len(completion) for completion in completions]


def train(kind, stage, lora):
    from datasets import Dataset
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    fresh()
    place = shared_directory()
    config = configuration(stage, train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps="auto", gradient_clipping="auto")
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    del config["steps_per_print"]
    if dist.get_rank() == 0:
        tiny_llama(pad_token_id=0, eos_token_id=1, bos_token_id=1).save_pretrained(os.path.join(place, "model"))
    dist.barrier()
    trainers = {
        "sft": (SFTConfig, SFTTrainer, {"max_length": 16}, [{"text": text(i)} for i in range(32)]),
        "dpo": (
            DPOConfig,
            DPOTrainer,
            {"max_length": 32},
            [{"prompt": text(i, 4), "chosen": text(100 + i, 6), "rejected": text(200 + i, 6)} for i in range(32)],
        ),
        "grpo": (GRPOConfig, GRPOTrainer, {"max_completion_length": 6, "num_generations": 2, "beta": 0.1}, [{"prompt": text(i, 4)} for i in range(32)]),
    }
    make, trainer_of, options, rows = trainers[kind]
    args = make(
        place,
        deepspeed=config if stage else None,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=2,
        learning_rate=5e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        seed=1,
        model_init_kwargs={"dtype": "float32"},
        **options,
    )
    own = {"reward_funcs": reward} if kind == "grpo" else {}
    adapter = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]) if lora else None
    trainer = trainer_of(
        model=os.path.join(place, "model"), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer(), peft_config=adapter, **own
    )
    trainer.train()
    keys = ("loss", "grad_norm", "learning_rate", "reward", "rewards/chosen", "kl")
    found = [[row.get(key) for key in keys] for row in trainer.state.log_history[:-1]]
    trainer.save_model(os.path.join(place, "last"))
    dist.barrier()
    if lora:
        from safetensors.torch import load_file

        state = load_file(os.path.join(place, "last", "adapter_model.safetensors"))
        assert all(t.numel() and t.dim() == 2 for t in state.values()) and any("lora_B" in name for name in state)
        found.append(sum(t.double().abs().sum().item() for t in state.values()))
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    return found


KINDS = [("sft", False), ("sft", True), ("dpo", False), ("grpo", False), ("grpo", True)]
CASES = []
for kind, stage, lora in (
    *((kind, 0, lora) for kind, lora in KINDS),
    *((kind, 3, lora) for kind, lora in KINDS),
    ("dpo", 2, False),
    ("grpo", 2, False),
):
    case = partial(train, kind, stage, lora)
    case.__name__ = f"{kind}{'_lora' if lora else ''}_stage{stage}"
    CASES.append(case)
