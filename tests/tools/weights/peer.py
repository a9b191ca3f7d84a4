"""The other side of weights_test and transformers_test: Hugging Face's own models.
  peer.py make DIR KIND SIZE [PART]
                              saves a random model (gpt2, or one of KINDS), and its logits after 1, 2, ... tokens
                              (logits.txt); PART: files of that size
  peer.py make_all SIZE DATA  one of each KIND, and tokens to train on
  peer.py compare DIR OTHER   OTHER loads, and has the logits of DIR bit for bit
  peer.py compare_all DATA    for each KIND in DIR, DIR.out as above; and DIR, trained for ten steps, has the losses of
                              ten.DIR within 2e-5
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


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 3.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
# Models of Llama's kind: the class, and what the configuration has beside or in place of what all have.
KINDS = {
    "llama": ("Llama", {}),
    "llama3": ("Llama", {"tie_word_embeddings": True, "rope_scaling": LLAMA3}),
    "linear": ("Llama", {"rope_scaling": LINEAR}),
    "yarn": ("Llama", {"rope_scaling": {**YARN, "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False}}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "head_dim": None, "num_attention_heads": 8, "initializer_range": 1 / 24,
                          "rope_interleaved": False, "is_llama_config": True}),
    "mistral": ("Mistral", {"sliding_window": 3, "rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.5}}),
    "mistral_whole": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {**WINDOW, "rope_scaling": LINEAR}),
    "qwen2_whole": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 10, "rope_scaling": YARN}),
    "qwen3_window": ("Qwen3", {**WINDOW, "tie_word_embeddings": True}),
}


def create(kind, size):
    import transformers as t
    if kind == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, n_embd=size, n_head=2, n_positions=8, vocab_size=24,
                                              bos_token_id=None, eos_token_id=None, resid_pdrop=0, embd_pdrop=0,
                                              attn_pdrop=0))
    name, own = KINDS[kind]
    config = getattr(t, name + "Config")(**{
        "num_hidden_layers": 2, "hidden_size": size, "intermediate_size": size + 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 8, "vocab_size": 24, "bos_token_id": None,
        "eos_token_id": None, "rope_theta": 100.0, **own})
    return getattr(t, name + "ForCausalLM")(config)


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


def make_all(size, data):
    import array
    for kind in ("gpt2", *KINDS):
        make(kind, kind, size)
    with open(data, "wb") as file:  # of llm.c
        array.array("i", [20240520, 1, 500] + 253 * [0]).tofile(file)
        array.array("H", [i * i % 23 for i in range(500)]).tofile(file)


def compare_all(data):
    for kind in ("gpt2", *KINDS):
        compare(kind, kind + ".out")
        steps(kind, f"ten.{kind}/metrics.jsonl", data)


def steps(path, metrics, data):
    import json
    import numpy
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(path).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    stream = torch.tensor(numpy.fromfile(data, numpy.uint16, offset=1024).astype(numpy.int64))
    most = 0
    for i, line in enumerate(open(metrics)):
        first = [(4 * i + k) * 8 for k in range(4)]
        x, y = (torch.stack([stream[f + at:f + at + 8] for f in first]) for at in (0, 1))
        loss = torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        most = max(most, abs(loss.item() - json.loads(line)["loss"]))
    print(f"{path}: the losses of {i + 1} steps, from {loss.item():g} at last, differ by at most {most:g}")
    if i != 9 or most > 2e-5:
        sys.exit(f"{path}: that is too much")


def read(path):
    from safetensors import safe_open
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with safe_open(name, "numpy") as file:
            for key in file.keys():
                print(key, *file.get_tensor(key).shape)


{"make": make, "compare": compare, "make_all": make_all, "compare_all": compare_all, "read": read}[sys.argv[1]](*sys.argv[2:])
