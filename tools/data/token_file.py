"""token_file.py TOKENIZER OUT.bin FILE... [--end TOKEN]: see tools/tokenize."""

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
    def __init__(self, path):
        try:
            import tokenizers
        except ImportError:
            fail(f"{sys.executable} has no package tokenizers: pip install tokenizers, or name another Python by PYTHON")
        self.directory = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            fail(f"{file} is not there: name a tokenizer.json, or the directory that has one")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self.chat = None

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

    def encode_chat(self, messages):
        if not self.chat:
            try:
                from transformers import AutoTokenizer
            except ImportError:
                fail('"messages" need the package transformers, which has the chat templates')
            self.chat = AutoTokenizer.from_pretrained(self.directory)
        if not self.chat.chat_template:
            fail(f'{self.directory} has no chat template, by which "messages" become text')
        return self.encode(self.chat.apply_chat_template(messages, tokenize=False))


def encode_line(tokenizer, line, where):
    try:
        item = json.loads(line)
    except ValueError as error:
        fail(f"{where} is no JSON: {error}")
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return tokenizer.encode(item["text"])
    if isinstance(item, dict) and isinstance(item.get("messages"), list):
        return tokenizer.encode_chat(item["messages"])
    if isinstance(item, dict) and isinstance(item.get("prompt"), str) and isinstance(item.get("completion"), str):
        return tokenizer.encode(item["prompt"] + item["completion"])
    fail(f'{where} has neither "text", nor "messages", nor "prompt" and "completion"')


def documents(tokenizer, path):
    try:
        with open(path, encoding="utf-8") as file:
            if path.suffix not in (".jsonl", ".ndjson"):
                yield tokenizer.encode(file.read())
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
    """Returns the numbers of tokens and documents. The file gets its name when it is whole."""
    partial = out.with_name(out.name + ".partial")
    try:
        numbers = write_partial(tokenizer, end, paths, partial)
        os.replace(partial, out)
        return numbers
    except OSError as error:
        fail(f"{out} cannot be written: {error}")
    finally:
        partial.unlink(missing_ok=True)


def write_partial(tokenizer, end, paths, partial):
    tokens = count = 0
    largest = max(tokenizer.tokenizer.get_vocab().values())  # numbers may leave gaps
    magic, version, kind = NARROW if largest < NARROW_MAX else WIDE
    with open(partial, "wb") as file:
        file.write(bytes(4 * HEADER_INTS))
        for path in paths:
            for ids in documents(tokenizer, path):
                ids = ids if end is None else [*ids, end]
                file.write(little(array.array(kind, ids)))
                tokens, count = tokens + len(ids), count + 1
        if not 0 < tokens <= TOKENS_MAX:
            fail(f"{tokens} tokens: a file has from 1 to {TOKENS_MAX}; make several, and give all of them to --data")
        file.seek(0)
        file.write(little(array.array("i", [magic, version, tokens])))
    return tokens, count


def main():
    parser = argparse.ArgumentParser(prog="tools/tokenize", usage="tools/tokenize TOKENIZER OUT.bin FILE... [--end TOKEN] | TOKENIZER --ids TEXT")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--end")
    parser.add_argument("--ids")
    arguments = parser.parse_args()
    if arguments.ids is not None:
        print(*Tokenizer(arguments.tokenizer).encode(arguments.ids), sep=",")
        return
    if not arguments.files:
        parser.error("name the file to write, and files to read")
    if arguments.out.suffix != ".bin":
        fail(f"{arguments.out}: a token file's name ends in .bin")
    tokenizer = Tokenizer(arguments.tokenizer)
    tokens, count = write(tokenizer, tokenizer.end(arguments.end), arguments.files, arguments.out)
    print(f"{arguments.out}: {tokens} tokens of {count} documents, vocabulary {tokenizer.tokenizer.get_vocab_size()}")


main()
