/* The text of tokens, from a tokenizer.json of Hugging Face. Only this direction: to cut text into tokens needs regular
 * expressions, which tools/tokenize has. Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece's spelling (Llama 2,
 * Mistral) are read. Threads: immutable once open. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct decoder;

/* `path`: the file, or a directory with a tokenizer.json. ZERO_E_IO: there is none, or it is damaged.
 * ZERO_E_UNSUPPORTED: it spells tokens in another way. */
zero_status decoder_open(const char *path, struct decoder **out, struct zero_error *error);
void decoder_close(struct decoder *decoder); /* NULL is allowed */

/* A part of the decoder, without a final zero. */
struct spelling {
    const char *bytes;
    size_t count;
};

/* The text of a token, which need not end a character of UTF-8. Nothing, if the token is special, or if the
 * tokenizer does not have it. `first`: the text begins with it; a space that only parts words is then left out. */
struct spelling decoder_spell(const struct decoder *decoder, uint32_t token, bool first);
