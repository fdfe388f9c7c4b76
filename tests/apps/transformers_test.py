#!/usr/bin/env python3
"""Folders that kolo-train writes, loaded by HF transformers, and the other way around: the same logits.

    transformers_test.py KOLO_TRAIN

Runs in $KOLO_PYTHON, or in python3; exit code 77 where that has no transformers. Tolerances are of the 2-norm of the difference over that of the
logits, and of the largest difference over the largest logit: 1e-5 up to 128 positions; 1e-3 at 2048, where transformers' angles, which are f32,
differ.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

chosen = os.environ.pop("KOLO_PYTHON", None)
if chosen:
    os.execvp(chosen, [chosen, "-B", *sys.argv])
try:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, logging
except ImportError as error:
    print(f"skipped: {error}; name a python with transformers in KOLO_PYTHON")
    sys.exit(77)
logging.disable_progress_bar()
torch.set_num_threads(1)
torch.manual_seed(7)

kolo_train = sys.argv[1]
holder = tempfile.TemporaryDirectory(prefix="kolo-transformers-")  # removed at the end, however that comes
folder = Path(holder.name)
text = bytes(random * 7919 % 251 * (random % 13 > 2) % 255 + 1 for random in range(6000))
(folder / "text").write_bytes(text)
tolerance = {128: 1e-5, 2048: 1e-3}
failures = []


def kolo(*flags):
    done = subprocess.run([kolo_train, "--model", "llama", "--data", folder / "text", "--batch", "2", *map(str, flags)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"kolo-train {' '.join(map(str, flags))}: {done.stderr}")


def kolo_logits(model, positions):
    kolo("--init", model, "--tokenizer", "none", "--val", folder / "text", "--seq", positions, "--eval-only", "--logits", folder / "logits.safetensors")
    return load_file(folder / "logits.safetensors")["logits"]


def transformers_logits(model, positions):
    sequences = torch.tensor([list(text[k * positions:(k + 1) * positions]) for k in range(2)])
    with torch.no_grad():
        return model(sequences).logits


def differences(got, want):
    return max(((got - want).norm() / want.norm()).item(), ((got - want).abs().max() / want.abs().max()).item())


def compare(name, path, model):
    for positions, most in tolerance.items():
        difference = differences(kolo_logits(path, positions), transformers_logits(model, positions))
        print(f"{name}, {positions} positions: {difference:.1e}")
        if not difference < most:
            failures.append(f"{name}: {difference} at {positions} positions, above {most}")


def check(what, held):
    print(f"{what}: {'yes' if held else 'NO'}")
    if not held:
        failures.append(what)


def load(path):
    return AutoModelForCausalLM.from_pretrained(path).float().eval()


# What kolo writes. The rates are high, so that a few steps make logits that differ from each other.
trained = ["--positions", 2048, "--seq", 64, "--steps", 12, "--lr", "2e-2", "--warmup", 2]
kolo("--preset", "tiny", *trained, "--save", folder / "plain")
compare("kolo's plain", folder / "plain", load(folder / "plain"))
kolo("--preset", "tiny", *trained, "--tied-head", "--kv-heads", 1, "--rope-theta", 500000, "--norm-eps", "1e-3", "--save-dtype", "bf16", "--save",
     folder / "tied")
tied = load(folder / "tied")
compare("kolo's tied head, in bf16", folder / "tied", tied)
check("its head is tied", tied.config.tie_word_embeddings and tied.lm_head.weight is tied.model.embed_tokens.weight)
check("its parameters are stored in bf16", all(t.dtype == torch.bfloat16 for t in load_file(folder / "tied/model.safetensors").values()))

# What transformers writes: shards, Llama 3's rotary frequencies, a tied head.
sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 2048, "initializer_range": 0.1}
scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
scaled = LlamaForCausalLM(LlamaConfig(**sizes, rope_scaling=scaling, rope_theta=10000.0, eos_token_id=[5, 6], bos_token_id=3)).eval()
scaled.save_pretrained(folder / "scaled", max_shard_size="100KB")
check("it is in shards", (folder / "scaled/model.safetensors.index.json").exists())
compare("transformers' scaled", folder / "scaled", scaled)
config = json.loads((folder / "scaled/config.json").read_text())
for key in ("rope_scaling", "rope_parameters"):
    if key in config:
        config[key] = {"rope_type": "default"}
unscaled = folder / "unscaled"
unscaled.mkdir()
for file in (folder / "scaled").iterdir():
    (unscaled / file.name).write_bytes(file.read_bytes())
(unscaled / "config.json").write_text(json.dumps(config))
check("the scaling shows", differences(kolo_logits(unscaled, 128), transformers_logits(scaled, 128)) > 1e-2)

older = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).eval()  # as files of some years ago: a tied head twice, and buffers
older.save_pretrained(folder / "older")
tensors = {name: tensor.clone() for name, tensor in older.state_dict().items()}
tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
for layer in range(2):
    tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = 10000 ** (-torch.arange(0, 16, 2).float() / 16)
save_file(tensors, folder / "older/model.safetensors", {"format": "pt"})
compare("transformers' tied, as older files", folder / "older", older)

# There and back: what is not kolo's own stays.
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.save(str(folder / "scaled/tokenizer.json"))
tokenizer_text = (folder / "scaled/tokenizer.json").read_text()
kolo("--init", folder / "scaled", "--seq", 64, "--steps", 2, "--save", folder / "back")
back = load(folder / "back")
compare("transformers' scaled, trained by kolo", folder / "back", back)
check("its tokens stay", back.config.eos_token_id == [5, 6] and back.config.bos_token_id == 3 and back.generation_config.eos_token_id == [5, 6])
check("its tokenizer stays", (folder / "back/tokenizer.json").read_text() == tokenizer_text)
check("it was trained", differences(transformers_logits(back, 128), transformers_logits(scaled, 128)) > 1e-4)

for failure in failures:
    print(f"transformers_test: {failure}", file=sys.stderr)
sys.exit(1 if failures else 0)
