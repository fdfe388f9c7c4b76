#!/usr/bin/env python3
"""Training speed of kolo's Llama in PyTorch on one GPU: bf16 autocast, fused AdamW, the gradients clipped.

    python3 bench/torch_llama.py [--compile] [--batch N] [--seq N] [--steps N]

Prints a JSON line with tokens per second, FLOP/s as kolo-train counts them, and their share of what products of bf16 reach.
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

sizes = {"base": dict(vocabulary=50000, dim=768, layers=12, heads=12, kv=3, ffn=3072)}


def rotate(x, cosine, sine):
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


class Block(nn.Module):
    def __init__(self, dim, heads, kv, ffn):
        super().__init__()
        self.heads, self.kv, self.head_dim = heads, kv, dim // heads
        self.norm1, self.norm2 = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)
        self.qkv = nn.Linear(dim, (heads + 2 * kv) * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate_up = nn.Linear(dim, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x, cosine, sine):
        batch, positions, _ = x.shape
        all_heads = self.qkv(self.norm1(x)).view(batch, positions, -1, self.head_dim).transpose(1, 2)
        q, k, v = all_heads.split([self.heads, self.kv, self.kv], 1)
        q, k = rotate(q, cosine, sine).to(v.dtype), rotate(k, cosine, sine).to(v.dtype)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, positions, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, positions, vocabulary, dim, layers, heads, kv, ffn):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, kv, ffn) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim, 1e-5), nn.Linear(dim, vocabulary, bias=False)
        width = dim // heads
        angle = torch.outer(torch.arange(positions).float(), 10000 ** (-torch.arange(0, width, 2).float() / width))
        self.register_buffer("cosine", torch.cat([angle.cos()] * 2, -1), False)
        self.register_buffer("sine", torch.cat([angle.sin()] * 2, -1), False)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def peak():
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(30):
        a @ b
    torch.cuda.synchronize()
    return 30 * 2 * 8192**3 / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    of = sizes["base"]
    torch.manual_seed(1)
    best = peak()
    model = Llama(given.seq, **of).cuda()
    multiplied = sum(p.numel() for p in model.parameters() if p.dim() > 1) - model.embed.weight.numel()
    flops = 6 * (multiplied + of["layers"] * of["dim"] * given.seq)  # of a token
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = torch.compile(model) if given.compile else model
    tokens, targets = torch.randint(0, of["vocabulary"], (2, given.batch, given.seq), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(given.steps):
        step()
    torch.cuda.synchronize()
    rate = given.batch * given.seq * given.steps / (time.perf_counter() - start)
    print(json.dumps({"torch": torch.__version__, "compiled": given.compile, "batch": given.batch, "tokens_per_s": round(rate),
                      "tflops": round(rate * flops * 1e-12, 1), "peak_tflops": round(best * 1e-12, 1),
                      "of_peak": round(rate * flops / best, 4), "gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}))


main()
