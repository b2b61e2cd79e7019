//! `llguidance` behind what the C interface asks of it: grammars compiled within limits, and matchers that say which
//! tokens may come next. Used by `grammar_ffi.rs`.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{regex_to_lark, Matcher, ParserFactory};
use serde_json::{json, Value};

use crate::ffi::Failure;
use crate::tokenizer::LoadedTokenizer;

/// Nesting that the recursive parsers of regexes and grammars are given.
const MAX_NESTING: usize = 100;
/// Parsers of schemas and grammars recurse; what they are given is bounded, and this holds it many times over.
const COMPILE_STACK_BYTES: usize = 64 << 20;
/// Compilations that ran out of time and still go on; more are not begun beside so many.
const MAX_OVERDUE: usize = 4;
/// Between two lexemes of JSON: enough for indented text, too little to go on for ever.
const JSON_WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";
const LIBRARY_FAILED: &str = "the grammar library failed on it";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    JsonSchema,
    Regex,
    Lark,
    /// A JSON array of strings, of which the text is one.
    Choice,
}

pub struct Factory {
    inner: Arc<ParserFactory>,
    has_eos: bool,
    overdue: Arc<AtomicUsize>,
}

/// A compiled grammar at its start.
pub struct Grammar {
    start: Mutex<Matcher>,
    has_eos: bool,
}

/// One text under a grammar.
pub struct GrammarMatcher {
    inner: Matcher,
    has_eos: bool,
    ended: bool,
}

impl Factory {
    pub fn new(tokenizer: &LoadedTokenizer, eos_ids: &[u32]) -> Result<Self, Failure> {
        let mut words = Vec::with_capacity(tokenizer.vocab_size() + 1);
        for id in 0..tokenizer.vocab_size() as u32 {
            words.push(word_of(tokenizer, id, eos_ids.contains(&id))?);
        }
        // The library wants an end token; one past the vocabulary is never written into a mask.
        let has_eos = !eos_ids.is_empty();
        let stand_in = [words.len() as u32];
        if !has_eos {
            words.push(marked(b"end"));
        }
        let eos_ids = if has_eos { eos_ids } else { &stand_in };
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, eos_ids[0]), &words).with_eos_tokens(eos_ids);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut inner =
            ParserFactory::new(&env, InferenceCapabilities::default(), &SlicedBiasComputer::general_slices())
                .map_err(|error| refused(&error))?;
        inner.quiet();
        let limits = inner.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = 50_000; // 1 to 2 kB each
        Ok(Self { inner: Arc::new(inner), has_eos, overdue: Arc::new(AtomicUsize::new(0)) })
    }

    /// On a thread with a stack of its own, since the library's limits bound work and not seconds.
    pub fn compile(&self, kind: Kind, text: &str, limit: Duration) -> Result<Grammar, Failure> {
        if self.overdue.load(Ordering::Relaxed) >= MAX_OVERDUE {
            return Err(Failure::limit("earlier grammars still take the time of this one"));
        }
        let (sender, receiver) = sync_channel(1);
        let (factory, overdue, owned) = (self.inner.clone(), self.overdue.clone(), text.to_owned());
        let gave_up = Arc::new(Mutex::new(Waiting::Yes));
        let waiting = gave_up.clone();
        let run = move || {
            let start = catch_unwind(AssertUnwindSafe(|| start_of(&factory, kind, &owned)));
            let _ = sender.send(start.unwrap_or_else(|_| Err(Failure::refused(LIBRARY_FAILED))));
            let mut state = waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if *state == Waiting::No {
                overdue.fetch_sub(1, Ordering::Relaxed);
            }
            *state = Waiting::Done;
        };
        thread::Builder::new()
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(run)
            .map_err(|error| Failure::limit(format!("no thread to compile on: {error}")))?;
        match receiver.recv_timeout(limit) {
            Ok(start) => Ok(Grammar { start: Mutex::new(start?), has_eos: self.has_eos }),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::refused(LIBRARY_FAILED)),
            Err(RecvTimeoutError::Timeout) => {
                let mut state = gave_up.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if *state == Waiting::Yes {
                    self.overdue.fetch_add(1, Ordering::Relaxed);
                    *state = Waiting::No;
                }
                Err(Failure::limit(format!("it takes more than {} ms to compile", limit.as_millis())))
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Waiting {
    Yes,
    No,
    Done,
}

impl Grammar {
    pub fn matcher(&self) -> Result<GrammarMatcher, Failure> {
        let start = self.start.lock().map_err(|_| Failure::refused("the grammar is broken"))?;
        // Deep: matchers of one grammar run on several threads and must not wait for each other.
        Ok(GrammarMatcher { inner: start.deep_clone(), has_eos: self.has_eos, ended: false })
    }
}

impl GrammarMatcher {
    /// Bit `id % 32` of word `id / 32` is set where the token may come next. Bits of no token are clear.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), Failure> {
        let mask = self.inner.compute_mask_or_eos().map_err(|error| refused(&error))?;
        let num_tokens = self.inner.tok_env().map_err(|error| refused(&error))?.tok_trie().vocab_size();
        let num_ids = if self.has_eos { num_tokens } else { num_tokens - 1 };
        words.fill(0);
        for (word, bits) in words.iter_mut().zip(mask.as_slice()) {
            *word = *bits;
        }
        let (whole, rest) = (num_ids / 32, num_ids % 32);
        if whole < words.len() {
            words[whole] &= (1u32 << rest) - 1;
            words[whole + 1..].fill(0);
        }
        if words.iter().all(|word| *word == 0) {
            return Err(Failure::refused("no token of the vocabulary fits the grammar here"));
        }
        Ok(())
    }

    /// The token that came; true where the text is whole by it.
    pub fn accept(&mut self, token: u32) -> Result<bool, Failure> {
        if self.ended {
            return Err(Failure::invalid("the text has ended"));
        }
        let trie_eos = {
            let env = self.inner.tok_env().map_err(|error| refused(&error))?;
            env.tok_trie().eos_tokens().contains(&token)
        };
        // At a forced end the library has stopped already and takes no token any more.
        if !(self.inner.is_stopped() && !self.inner.is_error() && trie_eos) {
            self.inner.consume_token(token).map_err(|error| refused(&error))?;
        }
        let stopped = self.inner.stop_reason();
        self.ended = trie_eos || (!self.has_eos && stopped != StopReason::NotStopped);
        Ok(self.ended)
    }
}

fn marked(name: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
}

/// The bytes that a token stands for; none for one that is no part of any text.
fn word_of(tokenizer: &LoadedTokenizer, id: u32, ends: bool) -> Result<Vec<u8>, Failure> {
    if ends || tokenizer.special_ids().binary_search(&id).is_ok() {
        let piece = tokenizer.piece(id).unwrap_or_default();
        return Ok(marked(format!("<{id}:{piece}>").as_bytes()));
    }
    let bytes = tokenizer.token_bytes(id, false)?;
    let is_text = bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
    Ok(if is_text { bytes } else { Vec::new() })
}

fn refused(error: &anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    // States and traces of the library follow in marks of their own.
    let end = text.find("\n<").unwrap_or(text.len());
    let mut line = text[..end].replace('\n', " ");
    if let Some((at, _)) = line.char_indices().nth(500) {
        line.truncate(at);
        line.push_str("...");
    }
    if line.starts_with("panic: ") {
        line = LIBRARY_FAILED.to_owned();
    }
    Failure::refused(line)
}

/// The first mask is computed here, where nobody waits for it: it builds most of the lexer.
fn start_of(factory: &ParserFactory, kind: Kind, text: &str) -> Result<Matcher, Failure> {
    let grammar = match kind {
        Kind::JsonSchema => TopLevelGrammar::from_json_schema(bounded_schema(text)?),
        Kind::Regex => TopLevelGrammar::from_lark(regex_grammar(checked_nesting(text)?)),
        Kind::Lark => TopLevelGrammar::from_lark(checked_nesting(text)?.to_owned()),
        Kind::Choice => TopLevelGrammar::from_lark(choice_grammar(text)?),
    };
    let parser = factory.create_parser(grammar).map_err(|error| refused(&error))?;
    let mut start = Matcher::new(Ok(parser));
    start.compute_mask_or_eos().map_err(|error| refused(&error))?;
    Ok(start)
}

/// The schema with our whitespace, whatever it says itself.
fn bounded_schema(text: &str) -> Result<Value, Failure> {
    let schema: Value = serde_json::from_str(text).map_err(|error| Failure::invalid(error.to_string()))?;
    let mut object = match schema {
        Value::Object(object) => object,
        Value::Bool(true) => serde_json::Map::new(),
        Value::Bool(false) => return Err(Failure::refused("nothing fits the schema `false`")),
        _ => return Err(Failure::invalid("a schema is an object or a boolean")),
    };
    object.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": JSON_WHITESPACE }));
    Ok(Value::Object(object))
}

fn choice_grammar(text: &str) -> Result<String, Failure> {
    let choices: Vec<String> = serde_json::from_str(text).map_err(|error| Failure::invalid(error.to_string()))?;
    if choices.is_empty() {
        return Err(Failure::invalid("there is nothing to choose from"));
    }
    let mut literals: Vec<String> = choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
    literals.sort_unstable();
    literals.dedup();
    Ok(format!("start: {}", literals.join(" | ")))
}

/// The whole text is matched anyway; `^` and `$` around a regex say nothing more, and the library knows neither.
fn without_anchors(regex: &str) -> &str {
    if regex.contains('|') && !regex.starts_with("^(") {
        return regex;
    }
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let Some(body) = regex.strip_suffix('$') else { return regex };
    let num_backslashes = body.bytes().rev().take_while(|byte| *byte == b'\\').count();
    if num_backslashes % 2 == 0 {
        body
    } else {
        regex
    }
}

/// `\d`, `\w` and `\s` are ASCII, as in the regexes of JSON schemas.
fn regex_grammar(regex: &str) -> String {
    format!("start: /{}/", regex_to_lark(without_anchors(regex), "dws"))
}

fn checked_nesting(text: &str) -> Result<&str, Failure> {
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(Failure::limit(format!("brackets are nested deeper than {MAX_NESTING}")));
        }
    }
    Ok(text)
}
