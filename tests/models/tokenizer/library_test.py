#!/usr/bin/env python3
"""Compares kolo's tokenizers with the library `tokenizers`, where Python has it.

usage: library_test.py TOKENIZER_JOB [MAKE_DIR]

MAKE_DIR: also writes the small tokenizers that the tests in C++ read there, and prints the hashes that they expect.
"""
import array
import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tokenizers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: Python has no module tokenizers")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
SPECIAL = ["<|begin_of_text|>", "<|tool|>", "<|tool|>s"]


def splitting(split):
    if split == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(split, texts, vocabulary, min_frequency=2, special=("<|endoftext|>",)):
    """The library's trainer on whole texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = splitting(split)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, min_frequency=min_frequency, special_tokens=list(special),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator(texts, trainer)
    return made


def fnv(data):
    state = 0xcbf29ce484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return state


def hash_of_ids(ids):
    return f"{fnv(array.array('i', ids).tobytes()):016x}"


def hash_of_training(model):
    """Tokens by id, then merges, one a line."""
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(merge) for merge in model["merges"]]
    return f"{fnv(''.join(line + chr(10) for line in tokens + merges).encode()):016x}"


def make(folder):
    """The small tokenizers of the tests: one as GPT-2's file, with merges as text, and one as Llama 3's."""
    root = HERE.parents[2]
    texts = [Path(os.environ["KOLO_SHARED_DIR"], "data/tinyshakespeare.txt").read_text()]
    texts += [path.read_text() for path in sorted(root.glob("ops/**/*.cc"))]
    texts.append("日本語の文字 и русский текст, ελληνικά 😀😀👍🏽 " * 20)
    gpt2 = json.loads(trained("gpt2", texts, 900).to_str())
    gpt2["added_tokens"][0]["normalized"] = True
    gpt2["model"]["merges"] = [" ".join(merge) for merge in gpt2["model"]["merges"]]
    llama3 = trained("llama3", texts, 900, special=())
    llama3.add_special_tokens(SPECIAL[:2])
    llama3.add_tokens([SPECIAL[2], "'s"])
    begin = llama3.token_to_id(SPECIAL[0])
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{SPECIAL[0]} $A", pair=f"{SPECIAL[0]} $A {SPECIAL[0]} $B",
                                      special_tokens=[(SPECIAL[0], begin)])])
    llama3 = json.loads(llama3.to_str())
    llama3["model"]["ignore_merges"] = True
    # Tokens that no merge makes are found with ignore_merges only.
    llama3["model"]["merges"] = [merge for i, merge in enumerate(llama3["model"]["merges"]) if i < 300 or i % 3]
    for name, content in ("gpt2", gpt2), ("llama3", llama3):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


def variants():
    """The stored tokenizers, and those with one option changed."""
    for name in "gpt2", "llama3":
        content = json.loads((HERE / f"{name}.json").read_text())
        yield name, content
        changed = copy.deepcopy(content)
        if name == "gpt2":
            changed["pre_tokenizer"]["add_prefix_space"] = True
        else:
            changed["model"]["ignore_merges"] = False
        yield name + " changed", changed


class Comparison:
    def __init__(self, job):
        self.job, self.failures = job, 0

    def run(self, *arguments):
        subprocess.run([self.job, *map(str, arguments)], check=True)

    def check(self, what, equal, detail=""):
        print(("equal    " if equal else "DIFFERS  ") + what, "" if equal else detail)
        self.failures += not equal

    def encodings(self, folder, name, text, file):
        """Encodes and decodes `text`, with the tokenizer in `file`, on both sides."""
        (folder / "text").write_bytes(text)
        self.run("encode", file, folder / "text", folder / "ids", folder / "decoded")
        ours = array.array("i", (folder / "ids").read_bytes())
        library = Tokenizer.from_file(str(file))
        theirs = library.encode(text.decode(errors="replace")).ids
        differs = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
        self.check(f"{name}: {len(theirs)} ids of {len(text)} bytes", list(ours) == theirs,
                   f"at id {differs}: {[library.id_to_token(i) for i in ours[differs - 3:differs + 4]]} and "
                   f"{[library.id_to_token(i) for i in theirs[differs - 3:differs + 4]]}")
        self.check(f"{name}: decoded text", (folder / "decoded").read_bytes() == library.decode(theirs).encode())
        return hash_of_ids(theirs)

    def pieces(self, folder, name, split, texts):
        """How texts are cut, by the pieces' lengths in bytes."""
        count = different = 0
        for text in texts:
            (folder / "text").write_text(text, newline="")
            self.run("pieces", split, folder / "text", folder / "lengths")
            ours = array.array("i", (folder / "lengths").read_bytes())
            theirs = array.array("i", (len(piece) for piece, _ in splitting(split).pre_tokenize_str(text)))
            count += len(theirs)
            different += ours != theirs
        self.check(f"{name}: {count} pieces", different == 0, f"in {different} texts")

    def trainings(self, folder, name, split, text, vocabulary, min_frequency):
        (folder / "text").write_bytes(text)
        self.run("train", vocabulary, min_frequency, split, folder / "text", folder / "ours.json")
        library = trained(split, [text.decode(errors="replace")], vocabulary, min_frequency)
        ours, theirs = json.loads((folder / "ours.json").read_text()), json.loads(library.to_str())
        for part in "vocab", "merges":
            self.check(f"{name}: {len(theirs['model'][part])} {part}", ours["model"][part] == theirs["model"][part])
        theirs["post_processor"] = ours["post_processor"]  # of offsets only
        self.check(f"{name}: what the library writes", ours == json.loads(Tokenizer.from_str(json.dumps(theirs)).to_str()))
        return hash_of_training(theirs["model"])


def every_character():
    """In parts: behind an apostrophe and a space, in front of a digit, a letter and a line break."""
    for first in range(0, 0x110000, 0x4000):
        characters = [chr(c) for c in range(first, first + 0x4000) if not 0xd800 <= c < 0xe000]
        yield "".join(f"'{c}1 {c}a{c}\n" for c in characters)


def main(arguments):
    compare = Comparison(arguments[0])
    if len(arguments) > 1:
        make(Path(arguments[1]))
    print(f"tokenizers {tokenizers.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare.run("text", 1, 1 << 20, folder / "mixed")
        mixed = (folder / "mixed").read_bytes()
        for name, content in variants():
            file = folder / "tokenizer.json"
            file.write_text(json.dumps(content))
            print("         hash", compare.encodings(folder, name, mixed, file))
        for split in "gpt2", "llama3":
            compare.pieces(folder, f"{split}, mixed text", split, [mixed.decode(errors="replace")])
            compare.pieces(folder, f"{split}, every character", split, every_character())
            print("         hash", compare.trainings(folder, f"{split}, mixed text", split, mixed, 3000, 2))
            play = Path(os.environ.get("KOLO_SHARED_DIR", HERE.parents[3] / "shared"), "data/tinyshakespeare.txt")
            if play.exists():
                print("         hash", compare.trainings(folder, f"{split}, Tiny Shakespeare", split, play.read_bytes(), 50000, 2))
    print(f"{compare.failures} differ")
    return 1 if compare.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
