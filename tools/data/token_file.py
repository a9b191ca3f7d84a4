"""token_file.py TOKENIZER OUT.bin FILE... [--end TOKEN] [--no-mask]: see tools/tokenize."""

import argparse
import array
import json
import os
import sys
from pathlib import Path

HEADER_INTS = 256  # tools/data/corpus.h
NARROW, WIDE = (20240520, 1, "H"), (20240801, 7, "I")  # magic, version, type of 16 and 32 bits
TOKENS_MAX, NARROW_MAX = 2**31 - 1, 2**16
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


def fail(message):
    sys.exit(f"tools/tokenize: {message}")


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


class Tokenizer:
    def __init__(self, path, masks=True):
        try:
            import tokenizers
        except ImportError:
            fail(f"{sys.executable} has no package tokenizers: pip install tokenizers, or name another Python by PYTHON")
        self.directory = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            fail(f"{file} is not there: name a tokenizer.json, or the directory that has one")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self.chat, self.masks = None, masks

    def end(self, token):
        """The id of the token after each document; None: there is none."""
        if token == "":
            return None
        given = read_json(self.directory / "tokenizer_config.json").get("eos_token")
        given = given["content"] if isinstance(given, dict) else given
        for name in [token] if token else [given, *ENDS]:
            found = self.tokenizer.token_to_id(name) if name else None
            if found is not None:
                return found
        fail(f'the tokenizer has no token "{token}"' if token else "the tokenizer names no end of text: give --end TOKEN, or --end ''")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_parts(self, text, spans):
        """The tokens, and for each a 1 if some of its text lies in one of the spans of characters, else a 0."""
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, [int(any(first < last_end and begin < end for begin, last_end in spans)) for first, end in encoded.offsets]

    def encode_chat(self, messages, where):
        if not self.chat:
            try:
                from transformers import AutoTokenizer
            except ImportError:
                fail('"messages" need the package transformers, which has the chat templates')
            self.chat = AutoTokenizer.from_pretrained(self.directory)
        if not self.chat.chat_template:
            fail(f'{self.directory} has no chat template, by which "messages" become text')
        if not self.masks:
            return whole(self.encode(self.chat.apply_chat_template(messages, tokenize=False)))
        render = lambda turns, **options: self.chat.apply_chat_template(turns, tokenize=False, **options) if turns else ""
        text, spans = render(messages), []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before, after = render(messages[:i], add_generation_prompt=True), render(messages[: i + 1])
            if not after.startswith(before) or not text.startswith(after.rstrip()):
                fail(f"{where}: the chat template changes earlier turns, so that the assistant's part is unknown: give --no-mask to train on all turns")
            spans.append((len(before), len(after)))
        return self.encode_parts(text, spans)


def labelled(item, where):
    """Tokens that are numbers already, with labels of -100 where they do not count."""
    ids, labels = item["input_ids"], item.get("labels", item["input_ids"])
    if not all(isinstance(n, int) and n >= 0 for n in ids) or len(labels) != len(ids) or any(b not in (a, -100) for a, b in zip(ids, labels)):
        fail(f'{where}: each of the "labels" is the number at its place in "input_ids", or -100')
    return ids, [int(label != -100) for label in labels]


def encode_line(tokenizer, line, where):
    """The tokens of a line, and a 1 or 0 for each: whether it counts as a target."""
    try:
        item = json.loads(line)
    except ValueError as error:
        fail(f"{where} is no JSON: {error}")
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return whole(tokenizer.encode(item["text"]))
    if isinstance(item, dict) and isinstance(item.get("messages"), list):
        return tokenizer.encode_chat(item["messages"], where)
    if isinstance(item, dict) and isinstance(item.get("prompt"), str) and isinstance(item.get("completion"), str):
        text = item["prompt"] + item["completion"]
        return tokenizer.encode_parts(text, [(len(item["prompt"]), len(text))])
    if isinstance(item, dict) and isinstance(item.get("input_ids"), list):
        return labelled(item, where)
    fail(f'{where} has neither "text", nor "messages", nor "prompt" and "completion", nor "input_ids"')


def whole(ids):
    return ids, [1] * len(ids)


def documents(tokenizer, path):
    try:
        with open(path, encoding="utf-8") as file:
            if path.suffix not in (".jsonl", ".ndjson"):
                yield whole(tokenizer.encode(file.read()))
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield encode_line(tokenizer, line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {error}")


def little(values):
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def write(tokenizer, end, paths, out):
    """Returns the numbers of tokens, of those that count, and of documents. The files get their names when they are whole."""
    mask = out.with_suffix(".mask")
    partial, partial_mask = out.with_name(out.name + ".partial"), out.with_name(mask.name + ".partial")
    try:
        tokens, counted, documents = write_partial(tokenizer, end, paths, partial, partial_mask)
        if counted < tokens:
            os.replace(partial_mask, mask)
        os.replace(partial, out)
        if counted == tokens:
            mask.unlink(missing_ok=True)
        return tokens, counted, documents
    except OSError as error:
        fail(f"{out} cannot be written: {error}")
    finally:
        partial.unlink(missing_ok=True)
        partial_mask.unlink(missing_ok=True)


def write_partial(tokenizer, end, paths, partial, partial_mask):
    tokens = counted = count = 0
    largest = max(tokenizer.tokenizer.get_vocab().values())  # numbers may leave gaps
    magic, version, kind = NARROW if largest < NARROW_MAX else WIDE
    with open(partial, "wb") as file, open(partial_mask, "wb") as mask:
        file.write(bytes(4 * HEADER_INTS))
        for path in paths:
            for ids, counts in documents(tokenizer, path):
                if ids and max(ids) > largest:
                    fail(f"{path}: {max(ids)} is no token of the tokenizer")
                counts = counts if tokenizer.masks else [1] * len(ids)
                if end is not None and ids[-1:] != [end]:
                    ids, counts = [*ids, end], [*counts, counts[-1] if counts else 1]
                file.write(little(array.array(kind, ids)))
                mask.write(bytes(counts))
                tokens, counted, count = tokens + len(ids), counted + sum(counts), count + 1
        if not 0 < tokens <= TOKENS_MAX:
            fail(f"{tokens} tokens: a file has from 1 to {TOKENS_MAX}; make several, and give all of them to --data")
        file.seek(0)
        file.write(little(array.array("i", [magic, version, tokens])))
    return tokens, counted, count


def main():
    parser = argparse.ArgumentParser(prog="tools/tokenize", usage="tools/tokenize TOKENIZER OUT.bin FILE... [--end TOKEN] [--no-mask] | TOKENIZER --ids TEXT")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--end")
    parser.add_argument("--no-mask", action="store_true")
    parser.add_argument("--ids")
    arguments = parser.parse_args()
    if arguments.ids is not None:
        print(*Tokenizer(arguments.tokenizer).encode(arguments.ids), sep=",")
        return
    if not arguments.files:
        parser.error("name the file to write, and files to read")
    if arguments.out.suffix != ".bin":
        fail(f"{arguments.out}: a token file's name ends in .bin")
    tokenizer = Tokenizer(arguments.tokenizer, not arguments.no_mask)
    tokens, counted, count = write(tokenizer, tokenizer.end(arguments.end), arguments.files, arguments.out)
    mask = f", {counted} of them targets by {arguments.out.with_suffix('.mask')}" if counted < tokens else ""
    print(f"{arguments.out}: {tokens} tokens of {count} documents, vocabulary {tokenizer.tokenizer.get_vocab_size()}{mask}")


main()
