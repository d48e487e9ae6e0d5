"""Draws requests like the tools that the samplers follow, with the generators of CPython and NumPy.

    pip install numpy==2.4.6 tokenizers==0.23.3
    python packs.py TOKENIZER.json CONVERSATIONS.json

prints one line per case for the test `packs.rs`: name, requests, input tokens, output tokens, and
the SHA-256 of the requests as JSON, `[[[ids], output tokens], ...]`. The tools are LMDeploy v0.9.2,
vLLM 0.33, SGLang 0.5.23 and InferenceX; additions of their tokenizer wrappers are left out.
"""

import hashlib
import json
import math
import random
import sys

import numpy as np
from tokenizers import Tokenizer

TOKENIZER = Tokenizer.from_file(sys.argv[1])
CONVERSATIONS = json.load(open(sys.argv[2], encoding="utf-8"))
SIZE = TOKENIZER.get_vocab_size(with_added_tokens=False)
ADDED = TOKENIZER.num_special_tokens_to_add(False)


def encode(text, special=True):
    return TOKENIZER.encode(text, add_special_tokens=special).ids


def decode(ids):
    return TOKENIZER.decode(ids, skip_special_tokens=False)


def seeded(seed):
    random.seed(seed)
    np.random.seed(seed)


def shuffled_pairs(empty=True):
    turns = [row["conversations"] for row in CONVERSATIONS]
    pairs = [(turn[0]["value"], turn[1]["value"]) for turn in turns if len(turn) >= 2]
    pairs = [pair for pair in pairs if pair[0] or empty]
    random.shuffle(pairs)
    return pairs


def sharegpt(tool, seed, count):
    seeded(seed)
    least, longest, together = (2, 1e9, 1e9) if tool == "sglang" else (4, 1024, 2048)
    rows = []
    for prompt, answer in shuffled_pairs():
        ids, output = encode(prompt), len(encode(answer))
        short = len(ids) < least or output < least
        if not short and len(ids) <= longest and len(ids) + output <= together:
            rows.append((ids, output))
        if len(rows) == count:
            return rows
    random.seed(seed)
    return rows + [random.choice(rows) for _ in range(count - len(rows))]


def uniform(bound, ratio, count, least):
    return np.random.randint(max(int(bound * ratio), least), bound + 1, size=count).tolist()


def random_text(tool, seed, count, bound_in, bound_out, ratio):
    seeded(seed)
    inputs = uniform(bound_in, ratio, count, 1)
    outputs = uniform(bound_out, ratio, count, 1 if tool == "sglang" else 0)
    rows = []
    # LMDeploy drops empty prompts before it shuffles, SGLang after.
    for prompt, _ in shuffled_pairs(empty=tool == "sglang"):
        ids = encode(prompt)
        if ids and len(rows) < count:
            length = inputs[len(rows)]
            rows.append(((ids * math.ceil(length / len(ids)))[:length], outputs[len(rows)]))
    return rows


def settled(ids, draw):
    wanted = len(ids)
    for left in range(10, -1, -1):
        text = decode(ids)
        ids = encode(text, False)
        if left == 0 or len(ids) == wanted:
            return text, ids
        ids = ids[:wanted] + (draw(wanted - len(ids)) if len(ids) < wanted else [])


def random_vllm(seed, count, mean_in, mean_out, ratio, prefix):
    rng = np.random.default_rng(seed)

    def lengths(mean, least):
        low, high = math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
        return rng.integers(max(low, least), max(high, least) + 1, size=count)

    inputs, outputs = lengths(max(0, mean_in - ADDED), 0), lengths(mean_out, 1)
    offsets = rng.integers(0, SIZE, size=count)
    special = {id for id, token in TOKENIZER.get_added_tokens_decoder().items() if token.special}
    allowed = np.array(list(set(np.arange(SIZE)) - special))
    head = allowed[rng.integers(0, len(allowed), size=prefix)].tolist() if prefix else []
    rows = []
    for i in range(count):
        run = allowed[(int(offsets[i]) + i + np.arange(int(inputs[i]))) % len(allowed)].tolist()
        text, _ = settled(head + run, lambda more: rng.integers(0, SIZE, size=more).tolist())
        rows.append((encode(text), int(outputs[i])))
    return rows


def random_inferencex(seed, count, bound_in, bound_out, ratio, prefix):
    seeded(seed)
    head = np.random.randint(0, SIZE, size=prefix).tolist()
    inputs = uniform(bound_in, ratio, count, 0)
    outputs = uniform(bound_out, ratio, count, 0)
    offsets = np.random.randint(0, SIZE, size=count)
    rows = []
    for i in range(count):
        run = [int((offsets[i] + i + j) % SIZE) for j in range(inputs[i])]
        text, _ = settled(head + run, lambda more: np.random.randint(0, SIZE, size=more).tolist())
        rows.append((encode(text), outputs[i]))
    return rows


def prefix_groups(seed, groups, each, prefix, bound_in, bound_out, ratio):
    seeded(seed)
    heads = uniform(prefix, ratio, groups, 1)
    inputs = uniform(bound_in, ratio, groups * each, 1)
    outputs = uniform(bound_out, ratio, groups * each, 1)
    ids = sorted(TOKENIZER.get_vocab(with_added_tokens=True).values())
    heads = [decode(random.choices(ids, k=length)) for length in heads]
    texts = [decode(random.choices(ids, k=length)) for length in inputs]
    rows = [(encode(f"{heads[i // each]}\n\n{texts[i]}"), outputs[i]) for i in range(len(texts))]
    random.shuffle(rows)
    return rows


def prefix_repetition(seed, groups, each, prefix, suffix, output):
    seeded(seed)

    def draw(more):
        return np.random.randint(0, SIZE, size=more).tolist()

    rows = []
    for _ in range(groups):
        head = settled(draw(prefix), draw)[1]
        rows += [(head + settled(draw(suffix), draw)[1], output) for _ in range(each)]
    random.shuffle(rows)
    return rows


def show(name, rows):
    text = json.dumps([[list(map(int, ids)), int(output)] for ids, output in rows], separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    print(name, len(rows), sum(len(ids) for ids, _ in rows), sum(row[1] for row in rows), digest)


show("sharegpt@lmdeploy", sharegpt("lmdeploy", 1, 12))
show("sharegpt@vllm", sharegpt("vllm", 0, 24))
show("sharegpt@sglang", sharegpt("sglang", 1, 12))
show("random@lmdeploy", random_text("lmdeploy", 1, 12, 300, 50, 0.25))
show("random@sglang", random_text("sglang", 1, 12, 300, 50, 0.25))
show("random@vllm", random_vllm(0, 20, 300, 50, 0.25, 0))
show("random@vllm", random_vllm(3, 20, 100, 20, 0.0, 64))
show("random@inferencex", random_inferencex(0, 20, 300, 50, 0.8, 0))
show("random@inferencex", random_inferencex(5, 20, 100, 20, 1.0, 32))
show("prefix-groups@sglang", prefix_groups(1, 4, 5, 128, 32, 16, 0.5))
show("prefix-repetition@vllm", prefix_repetition(0, 4, 5, 64, 32, 16))
