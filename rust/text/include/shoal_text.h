/* Tokenizers, chat templates and grammars of the Rust crate `shoal_text`, as C. Used by src/text alone.
 * Every function returns a code; on failure `error` holds its text. No panic crosses this boundary. */
#ifndef SHOAL_TEXT_H
#define SHOAL_TEXT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  SHOAL_TEXT_OK = 0,
  SHOAL_TEXT_INVALID_INPUT = 1, /* not UTF-8, not JSON, or a null handle */
  SHOAL_TEXT_LIMIT = 2,         /* a size, nesting or fuel limit */
  SHOAL_TEXT_RAISED = 3,        /* the template called raise_exception; `error` is its text alone */
  SHOAL_TEXT_FAILED = 4,        /* the library refused; `error` says why */
  SHOAL_TEXT_PANIC = 5          /* a bug in a library, caught */
};

typedef struct ShoalTokenizer ShoalTokenizer;
typedef struct ShoalTemplate ShoalTemplate;
typedef struct ShoalGrammarFactory ShoalGrammarFactory; /* a tokenizer's vocabulary, as grammars need it */
typedef struct ShoalGrammar ShoalGrammar;               /* compiled */
typedef struct ShoalMatcher ShoalMatcher;               /* one text under a grammar */

/* Bytes borrowed from the caller for one call. */
typedef struct {
  const uint8_t* data;
  size_t length;
} ShoalTextView;

/* Bytes owned by the crate; free with shoal_text_buffer_free. `data` is null when empty. */
typedef struct {
  uint8_t* data;
  size_t length;
} ShoalTextBuffer;

/* Three arrays [count]; free with shoal_text_encoding_free. Offsets count characters. */
typedef struct {
  int64_t* ids;
  int64_t* starts;
  int64_t* stops;
  size_t count;
} ShoalTextEncoding;

/* A byte range [start, stop) of a text. */
typedef struct {
  size_t start;
  size_t stop;
} ShoalTextRange;

/* A template variable: its name and its value as JSON. */
typedef struct {
  ShoalTextView name;
  ShoalTextView json;
} ShoalTextVariable;

typedef struct {
  int64_t vocab_size;           /* highest id + 1, added tokens included */
  ShoalTextBuffer strip_prefix; /* text that the decoder drops at the very start of the whole text */
  size_t strip_count;           /* at most so many times */
} ShoalTextTraits;

/* How added tokens glue to the text around them, as tokenizer_config.json states it. */
typedef struct {
  ShoalTextView content;
  uint8_t single_word;
  uint8_t lstrip;
  uint8_t rstrip;
  uint8_t normalized;
  uint8_t special;
  uint8_t keep_known; /* leave the token as it is if tokenizer.json already lists it */
} ShoalTextAddedToken;

void shoal_text_buffer_free(ShoalTextBuffer* buffer);
void shoal_text_encoding_free(ShoalTextEncoding* encoding);

/* `json` is the content of tokenizer.json. Truncation and padding stated there are dropped. */
int32_t shoal_tokenizer_load(ShoalTextView json, const ShoalTextAddedToken* added, size_t added_count,
                             ShoalTokenizer** out, ShoalTextTraits* traits, ShoalTextBuffer* error);
void shoal_tokenizer_free(ShoalTokenizer* tokenizer);

/* Special tokens whose text lies in a plain range become ordinary pieces. Without `with_offsets`, starts and
 * stops are null. */
int32_t shoal_tokenizer_encode(const ShoalTokenizer* tokenizer, ShoalTextView text, int32_t add_special_tokens,
                               const ShoalTextRange* plain, size_t plain_count, int32_t with_offsets,
                               ShoalTextEncoding* out, ShoalTextBuffer* error);

/* The bytes that this token adds to a text; an unknown id adds none. `is_first`: nothing came before it. */
int32_t shoal_tokenizer_token_bytes(const ShoalTokenizer* tokenizer, int64_t id, int32_t is_first, ShoalTextBuffer* out,
                                    ShoalTextBuffer* error);
/* The raw piece of the vocabulary; an unknown id gives `*found` = 0. */
int32_t shoal_tokenizer_piece(const ShoalTokenizer* tokenizer, int64_t id, ShoalTextBuffer* out, int32_t* found,
                              ShoalTextBuffer* error);
/* The id of a piece, or -1. */
int32_t shoal_tokenizer_token_id(const ShoalTokenizer* tokenizer, ShoalTextView piece, int64_t* out,
                                 ShoalTextBuffer* error);
/* The ids of all special tokens, ascending; starts and stops are null. */
int32_t shoal_tokenizer_special_ids(const ShoalTokenizer* tokenizer, ShoalTextEncoding* out, ShoalTextBuffer* error);

int32_t shoal_template_compile(ShoalTextView source, ShoalTemplate** out, ShoalTextBuffer* error);
void shoal_template_free(ShoalTemplate* compiled);
int32_t shoal_template_render(const ShoalTemplate* compiled, const ShoalTextVariable* variables, size_t count,
                              ShoalTextBuffer* out, ShoalTextBuffer* error);
/* `*uses` = 1 if the template reads a variable of this name that it does not set itself. */
int32_t shoal_template_uses(const ShoalTemplate* compiled, ShoalTextView name, int32_t* uses, ShoalTextBuffer* error);

enum {
  SHOAL_GRAMMAR_JSON_SCHEMA = 0,
  SHOAL_GRAMMAR_REGEX = 1,
  SHOAL_GRAMMAR_LARK = 2,
  SHOAL_GRAMMAR_CHOICE = 3 /* a JSON array of strings */
};

/* `eos_ids` end a text; special tokens and these are no part of any text. The tokenizer may go before the factory. */
int32_t shoal_grammar_factory_new(const ShoalTokenizer* tokenizer, const int64_t* eos_ids, size_t eos_count,
                                  ShoalGrammarFactory** out, ShoalTextBuffer* error);
void shoal_grammar_factory_free(ShoalGrammarFactory* factory);
/* Any number of threads at once. SHOAL_TEXT_LIMIT after `limit_ms`. */
int32_t shoal_grammar_compile(const ShoalGrammarFactory* factory, int32_t kind, ShoalTextView text, uint32_t limit_ms,
                              ShoalGrammar** out, ShoalTextBuffer* error);
void shoal_grammar_free(ShoalGrammar* grammar);
/* Any number of threads at once; the grammar may go before its matchers. A matcher is used by one thread at a time. */
int32_t shoal_matcher_new(const ShoalGrammar* grammar, ShoalMatcher** out, ShoalTextBuffer* error);
void shoal_matcher_free(ShoalMatcher* matcher);
/* Bit id % 32 of word id / 32 is set where that token may come next; all other bits of the words are clear. */
int32_t shoal_matcher_mask(ShoalMatcher* matcher, uint32_t* words, size_t count, ShoalTextBuffer* error);
/* The token that came next. `*ended` = 1 where the text is whole by it. */
int32_t shoal_matcher_accept(ShoalMatcher* matcher, int64_t token, int32_t* ended, ShoalTextBuffer* error);

#ifdef __cplusplus
}
#endif

#endif
