"""token_file.py TOKENIZER OUT.bin FILE... [--end TOKEN] [--no-mask]: see tools/tokenize."""

import argparse
import array
import bz2
import csv
import gzip
import itertools
import json
import lzma
import os
import re
import sys
from pathlib import Path

HEADER_INTS = 256  # tools/data/corpus.h
NARROW, WIDE = (20240520, 1, "H"), (20240801, 7, "I")  # magic, version, type of 16 and 32 bits
TOKENS_MAX, NARROW_MAX = 2**31 - 1, 2**16
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


def fail(message):
    shown = "".join(c if c.isprintable() else "?" for c in message)  # it may repeat what stands in a file
    sys.exit(f"tools/tokenize: {shown}")


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def model_of(path):
    """The directory of the model with which a run of zero began; else the path as it is."""
    options = read_json(path / "run.json").get("kept", {}).get("options", []) if path.is_dir() and not (path / "tokenizer.json").exists() else []
    return Path(options[options.index("--model") + 1]) if "--model" in options[:-1] else path


class Tokenizer:
    def __init__(self, path, masks=True):
        try:
            import tokenizers
        except ImportError:
            fail(f"{sys.executable} has no package tokenizers: pip install tokenizers, or name another Python by PYTHON")
        path = model_of(path)
        self.directory = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            fail(f"{file} is not there: name a tokenizer.json, or the directory that has one")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self.tokenizer.no_truncation()  # a tokenizer.json may keep the lengths with which it was last called
        self.tokenizer.no_padding()
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

    def prompt(self, text):
        """The tokens of a text that goes on: without those that the tokenizer puts after a text."""
        encoded = self.tokenizer.encode(text)
        return encoded.ids[: len(encoded.ids) - trailing(encoded)]

    def encode(self, text, spans=None, special=True):
        """The tokens, and for each a 1 if some of its text lies in one of the spans of characters (None: all), else a 0. `special`:
        with the tokens that the tokenizer puts before and after each text; a chat template writes them itself."""
        encoded = self.tokenizer.encode(text, add_special_tokens=special)
        if spans is None:
            return encoded.ids, [1] * len(encoded.ids)
        counts = [int(any(first < last_end and begin < end for begin, last_end in spans)) for first, end in encoded.offsets]
        own = len(counts) - trailing(encoded)
        return encoded.ids, counts[:own] + counts[own - 1 : own] * (len(counts) - own)

    def renderer(self, options, where):
        """A function that makes text of messages by the chat template."""
        if not self.chat:
            try:
                from transformers import AutoTokenizer
            except ImportError:
                fail('"messages" need the package transformers, which has the chat templates')
            self.chat = AutoTokenizer.from_pretrained(self.directory)
        if not self.chat.chat_template:
            fail(f'{self.directory} has no chat template, by which "messages" become text')

        def render(messages, **more):
            try:
                return self.chat.apply_chat_template(messages, tokenize=False, **options, **more) if messages else ""
            except Exception as error:  # the template's own: it refuses some orders of roles
                fail(f"{where}: the chat template refuses the messages: {error}")

        return render

    def prompt_chat(self, text):
        """The tokens of a user's message, up to where the assistant's begins."""
        render = self.renderer({}, "--chat")
        return self.encode(render([{"role": "user", "content": text}], add_generation_prompt=True), special=False)[0]

    def encode_chat(self, messages, options, where):
        render = self.renderer(options, where)
        text, spans = render(messages), []
        for name in options:
            if self.renderer({n: v for n, v in options.items() if n != name}, where)(messages) == text:
                fail(f'{where}: the chat template has no place for "{name}": give a model whose template has, or remove them')
        for i, message in enumerate(messages if self.masks else []):
            if message.get("role") != "assistant" or message.get("weight") == 0:
                continue
            before, after = render(messages[:i], add_generation_prompt=True), render(messages[: i + 1])
            if not after.startswith(before) or not text.startswith(after.rstrip()):
                fail(f"{where}: the chat template changes earlier turns, so that the assistant's part is unknown: give --no-mask to train on all turns")
            spans.append((len(before), len(after)))
        return self.encode(text, spans if self.masks else None, special=False)

    def encode_completion(self, prompt, completion, options, where):
        render = self.renderer(options, where)
        before, text = render(prompt, add_generation_prompt=True), render(prompt + completion)
        if not text.startswith(before):
            fail(f"{where}: the chat template changes the prompt before its completion: give both as \"messages\"")
        return self.encode(text, [(len(before), len(text))], special=False)


def trailing(encoded):
    """How many tokens the tokenizer has put after the text."""
    mask = encoded.special_tokens_mask
    count = len(list(itertools.takewhile(bool, reversed(mask))))
    return count if count < len(mask) else 0


def labelled(item, where):
    """Tokens that are numbers already, with labels of -100 where they do not count."""
    ids, labels = item["input_ids"], item.get("labels", item["input_ids"])
    if not all(isinstance(n, int) and n >= 0 for n in ids) or len(labels) != len(ids) or any(b not in (a, -100) for a, b in zip(ids, labels)):
        fail(f'{where}: each of the "labels" is the number at its place in "input_ids", or -100')
    return ids, [int(label != -100) for label in labels]


ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant"}  # ShareGPT's
ROLES |= {role: role for role in ("system", "user", "assistant", "tool")}


def as_message(turn, where):
    """A message; ShareGPT writes {"from": ..., "value": ...}."""
    if isinstance(turn, dict) and "from" in turn and "value" in turn:
        if turn["from"] not in ROLES:
            fail(f'{where}: a turn is from "{turn["from"]}", for which no role is known: one of {", ".join(ROLES)}')
        return {**{k: v for k, v in turn.items() if k not in ("from", "value")}, "role": ROLES[turn["from"]], "content": turn["value"]}
    if not isinstance(turn, dict) or "role" not in turn:
        fail(f'{where}: a message has neither "role" nor "from" and "value"')
    return turn


def chat_options(item, where):
    """What the chat template gets beside the messages."""
    options = {name: item[name] for name in ("tools", "documents") if item.get(name)}
    for name in options:
        if isinstance(options[name], str):  # a column of a table
            try:
                options[name] = json.loads(options[name])
            except ValueError as error:
                fail(f'{where}: "{name}" is no JSON: {error}')
    for name in ("functions", "function_call", "tool_choice", "images", "videos", "audio"):
        if item.get(name):
            fail(f'{where}: "{name}" beside messages is not read here: functions go under "tools"')
    return options | (item.get("chat_template_kwargs") or {})


def encode_item(tokenizer, item, where):
    """The tokens of a sample, and a 1 or 0 for each: whether it counts as a target."""
    item = item if isinstance(item, dict) else {}
    kind = lambda name: type(item.get(name))
    chat = "messages" if kind("messages") is list else "conversations"
    if kind("text") is str:
        return tokenizer.encode(item["text"])
    if kind(chat) is list:
        messages = [as_message(turn, where) for turn in item[chat]]
        if kind("system") is str and item["system"] and messages and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": item["system"]})
        return tokenizer.encode_chat(messages, chat_options(item, where), where)
    if kind("prompt") is str and kind("completion") is str:
        text = item["prompt"] + item["completion"]
        return tokenizer.encode(text, [(len(item["prompt"]), len(text))])
    if kind("prompt") is list and kind("completion") is list:
        parts = [[as_message(turn, where) for turn in item[name]] for name in ("prompt", "completion")]
        return tokenizer.encode_completion(*parts, chat_options(item, where), where)
    if kind("input_ids") is list:
        return labelled(item, where)
    fail(f'{where} has neither "text", nor "messages" or "conversations", nor "prompt" and "completion", nor "input_ids"')


# ---- files: by their first bytes, and by the end of their names ----

READERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
TABLES = {".csv": ",", ".tsv": "\t"}
csv.field_size_limit(2**31 - 1)
NAMED_JSON = (".json", ".jsonl", ".ndjson")
LIKE_JSON = re.compile(r'\s*(\[\s*)?\{\s*"')
BINARY = (b"\0", b"\x28\xb5\x2f\xfd")  # of Zstandard, which may lack a zero


def kind_of(path):
    """How to open the file, its first characters, and the end of its name without that of its compression."""
    with open(path, "rb") as file:
        head = file.read(8)
    opener = next((reader for magic, reader in READERS.items() if head.startswith(magic)), open)
    with opener(path, "rb") as file:
        head = file.read(1 << 16)
    if BINARY[0] in head or head.startswith(BINARY[1]):
        fail(f"{path} is neither text nor JSON, but a table, an archive or numbers: write it as JSON lines (to_json of datasets and pandas)")
    ends = [end.lower() for end in path.suffixes[-2:]]
    return opener, head.decode(errors="replace").removeprefix("\ufeff"), ends[-1] if opener is open and ends else ends[0] if ends else ""


def json_items(file, path):
    """JSON lines; or one list of objects, or one object, over any lines."""
    first = file.readline()
    try:
        json.loads(first or "0")
    except ValueError:
        try:
            whole = json.loads(first + file.read())
        except ValueError:
            file.seek(0)
        else:
            yield from ((item, f"{path}, item {i}") for i, item in enumerate(whole if isinstance(whole, list) else [whole], 1))
            return
    file.seek(0)
    for number, line in enumerate(file, 1):
        try:
            item = json.loads(line) if line.strip() else []
        except ValueError as error:
            fail(f"{path}:{number} is no JSON: {error}")
        yield from ((one, f"{path}:{number}") for one in (item if isinstance(item, list) else [item]))


def documents(tokenizer, path):
    """Of each document the tokens, whether each counts, and whether the document is one sample: a text file may be many, with a
    token of the end after each."""
    try:
        opener, head, end = kind_of(path)
        with opener(path, "rt", encoding="utf-8-sig", newline="" if end in TABLES else None) as file:
            if end in TABLES:
                rows = csv.DictReader(file, delimiter=TABLES[end])
                for row in rows:
                    yield *encode_item(tokenizer, row, f"{path}:{rows.line_num}"), True
            elif end in NAMED_JSON or LIKE_JSON.match(head):
                for item, where in json_items(file, path):
                    yield *encode_item(tokenizer, item, where), True
            else:
                yield *tokenizer.encode(file.read()), False
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, lzma.LZMAError) as error:
        fail(f"{path} cannot be read: {error}")


def finish(ids, counts, end, sample):
    """The document with its end, and the bytes of its loss mask: 2 more where the token of the end is inside a sample."""
    if end is not None and ids[-1:] != [end]:
        ids, counts = [*ids, end], [*counts, counts[-1] if counts else 1]
    inside = len(ids) - 1 if sample else 0
    return ids, bytes(count | (2 if i < inside and token == end else 0) for i, (token, count) in enumerate(zip(ids, counts)))


def little(values):
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def write(tokenizer, end, paths, out):
    """Returns the numbers of tokens, of those that count, and of documents. The files get their names when they are whole."""
    mask = out.with_suffix(".mask")
    partial, partial_mask = out.with_name(out.name + ".partial"), out.with_name(mask.name + ".partial")
    try:
        tokens, counted, documents, plain = write_partial(tokenizer, end, paths, partial, partial_mask)
        if not plain:
            os.replace(partial_mask, mask)
        os.replace(partial, out)
        if plain:
            mask.unlink(missing_ok=True)
        return tokens, counted, documents
    except OSError as error:
        fail(f"{out} cannot be written: {error}")
    finally:
        partial.unlink(missing_ok=True)
        partial_mask.unlink(missing_ok=True)


def write_partial(tokenizer, end, paths, partial, partial_mask):
    tokens = counted = count = 0
    plain = True  # the mask says nothing
    largest = max(tokenizer.tokenizer.get_vocab().values())  # numbers may leave gaps
    magic, version, kind = NARROW if largest < NARROW_MAX else WIDE
    with open(partial, "wb") as file, open(partial_mask, "wb") as mask:
        file.write(bytes(4 * HEADER_INTS))
        for path in paths:
            for ids, counts, sample in documents(tokenizer, path):
                if ids and max(ids) > largest:
                    fail(f"{path}: {max(ids)} is no token of the tokenizer")
                ids, marks = finish(ids, counts if tokenizer.masks else [1] * len(ids), end, sample)
                file.write(little(array.array(kind, ids)))
                mask.write(marks)
                ones = marks.count(1)
                plain = plain and ones == len(marks)
                tokens, counted, count = tokens + len(ids), counted + ones + marks.count(3), count + 1
        if not 0 < tokens <= TOKENS_MAX:
            fail(f"{tokens} tokens: a file has from 1 to {TOKENS_MAX}; make several, and give all of them to --data")
        file.seek(0)
        file.write(little(array.array("i", [magic, version, tokens])))
    return tokens, counted, count, plain


def main():
    parser = argparse.ArgumentParser(prog="tools/tokenize", usage="tools/tokenize TOKENIZER OUT.bin FILE... [--end TOKEN] [--no-mask] | TOKENIZER --ids TEXT | TOKENIZER --chat TEXT")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--end")
    parser.add_argument("--no-mask", action="store_true")
    parser.add_argument("--ids")
    parser.add_argument("--chat")
    arguments = parser.parse_args()
    if arguments.ids is not None:
        print(*Tokenizer(arguments.tokenizer).prompt(arguments.ids), sep=",")
        return
    if arguments.chat is not None:
        print(*Tokenizer(arguments.tokenizer).prompt_chat(arguments.chat), sep=",")
        return
    if not arguments.files:
        parser.error("name the file to write, and files to read")
    if arguments.out.suffix != ".bin":
        fail(f"{arguments.out}: a token file's name ends in .bin")
    tokenizer = Tokenizer(arguments.tokenizer, not arguments.no_mask)
    end = tokenizer.end(arguments.end)
    tokens, counted, count = write(tokenizer, end, arguments.files, arguments.out)
    mask = f", {counted} of them targets by {arguments.out.with_suffix('.mask')}" if counted < tokens else ""
    bounds = f', "document_end": {end}' if end is not None else ""
    print(f"{arguments.out}: {tokens} tokens of {count} documents, vocabulary {tokenizer.tokenizer.get_vocab_size()}{mask}{bounds}")


main()
