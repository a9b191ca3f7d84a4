"""The other side of weights_test and transformers_test: Hugging Face's own GPT-2 and Llama.
  peer.py make DIR KIND SIZE [PART]
                              saves a random model (gpt2, llama, llama3: with scaled positions, tied), and its logits after
                              1, 2, ... tokens (logits.txt); PART: files of that size
  peer.py compare DIR OTHER   OTHER loads, and has the logits of DIR bit for bit
  peer.py read DIR            a checkpoint's files are safetensors: prints their tensors' names"""
import glob
import os
import sys


def tokens(model):
    return [(7 * i + 3) % model.config.vocab_size for i in range(model.config.max_position_embeddings)]


def logits(model):
    import torch
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens(model)])).logits[0]


def create(kind, size):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=size, n_head=2, n_positions=8, vocab_size=24,
                                          bos_token_id=None, eos_token_id=None))
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
    return LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=2, hidden_size=size, intermediate_size=size + 4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=8, vocab_size=24, bos_token_id=None,
        eos_token_id=None, tie_word_embeddings=kind == "llama3", rope_theta=100.0,
        rope_scaling=scaling if kind == "llama3" else None))


def make(path, kind, size, part="5GB"):
    import torch
    torch.manual_seed(7)
    model = create(kind, int(size))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path, max_shard_size=part)
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(path, extra)):
            os.remove(os.path.join(path, extra))
    with open(os.path.join(path, "logits.txt"), "w") as file:
        file.write(" ".join(map(str, tokens(model))) + "\n")
        for row in logits(model):
            file.write(" ".join(f"{x:.7g}" for x in row.tolist()) + "\n")


def compare(path, other):
    from transformers import AutoModelForCausalLM
    a, b = (logits(AutoModelForCausalLM.from_pretrained(p)) for p in (path, other))
    if not bool((a == b).all()):
        sys.exit(f"{other}: other logits than {path}: by up to {(a - b).abs().max():g}")


def read(path):
    from safetensors import safe_open
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with safe_open(name, "numpy") as file:
            for key in file.keys():
                print(key, *file.get_tensor(key).shape)


{"make": make, "compare": compare, "read": read}[sys.argv[1]](*sys.argv[2:])
