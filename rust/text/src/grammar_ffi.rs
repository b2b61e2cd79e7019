//! The exported C functions of grammars. Mirrors the second part of `include/shoal_text.h`.

use std::time::Duration;

use crate::ffi::{borrow, guard, slice, token_of, Failure, ShoalTextBuffer, ShoalTextView, ShoalTokenizer};
use crate::grammar::{Factory, Grammar, GrammarMatcher, Kind};

pub struct ShoalGrammarFactory(Factory);
pub struct ShoalGrammar(Grammar);
pub struct ShoalMatcher(GrammarMatcher);

fn kind_of(kind: i32) -> Result<Kind, Failure> {
    match kind {
        0 => Ok(Kind::JsonSchema),
        1 => Ok(Kind::Regex),
        2 => Ok(Kind::Lark),
        3 => Ok(Kind::Choice),
        _ => Err(Failure::invalid(format!("no grammar of kind {kind}"))),
    }
}

/// # Safety
/// The tokenizer lives for the call, `eos_ids` holds `eos_count` values; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_grammar_factory_new(
    tokenizer: *const ShoalTokenizer,
    eos_ids: *const i64,
    eos_count: usize,
    out: *mut *mut ShoalGrammarFactory,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let tokenizer = borrow(tokenizer)?.inner();
            let in_vocab = |id: &u32| (*id as usize) < tokenizer.vocab_size();
            let eos_ids: Vec<u32> =
                slice(eos_ids, eos_count).iter().filter_map(|id| token_of(*id)).filter(in_vocab).collect();
            out.write(Box::into_raw(Box::new(ShoalGrammarFactory(Factory::new(tokenizer, &eos_ids)?))));
            Ok(())
        })
    }
}

/// # Safety
/// `factory` is null or came from `shoal_grammar_factory_new`, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn shoal_grammar_factory_free(factory: *mut ShoalGrammarFactory) {
    if !factory.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(factory) });
    }
}

/// # Safety
/// The handle lives, the view holds for the call; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_grammar_compile(
    factory: *const ShoalGrammarFactory,
    kind: i32,
    text: ShoalTextView,
    limit_ms: u32,
    out: *mut *mut ShoalGrammar,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let limit = Duration::from_millis(u64::from(limit_ms));
            let grammar = borrow(factory)?.0.compile(kind_of(kind)?, text.text()?, limit)?;
            out.write(Box::into_raw(Box::new(ShoalGrammar(grammar))));
            Ok(())
        })
    }
}

/// # Safety
/// `grammar` is null or came from `shoal_grammar_compile`, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn shoal_grammar_free(grammar: *mut ShoalGrammar) {
    if !grammar.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(grammar) });
    }
}

/// # Safety
/// The handle lives; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_matcher_new(
    grammar: *const ShoalGrammar,
    out: *mut *mut ShoalMatcher,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            out.write(Box::into_raw(Box::new(ShoalMatcher(borrow(grammar)?.0.matcher()?))));
            Ok(())
        })
    }
}

/// # Safety
/// `matcher` is null or came from `shoal_matcher_new`, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn shoal_matcher_free(matcher: *mut ShoalMatcher) {
    if !matcher.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(matcher) });
    }
}

/// # Safety
/// The handle lives and is used by this thread alone; `words` has room for `count` values.
#[no_mangle]
pub unsafe extern "C" fn shoal_matcher_mask(
    matcher: *mut ShoalMatcher,
    words: *mut u32,
    count: usize,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let matcher = matcher.as_mut().ok_or_else(|| Failure::invalid("null handle"))?;
            if words.is_null() {
                return Err(Failure::invalid("no room for a mask"));
            }
            matcher.0.mask(std::slice::from_raw_parts_mut(words, count))
        })
    }
}

/// # Safety
/// The handle lives and is used by this thread alone; `ended` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_matcher_accept(
    matcher: *mut ShoalMatcher,
    token: i64,
    ended: *mut i32,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let matcher = matcher.as_mut().ok_or_else(|| Failure::invalid("null handle"))?;
            let token = token_of(token).ok_or_else(|| Failure::invalid("no token id"))?;
            ended.write(i32::from(matcher.0.accept(token)?));
            Ok(())
        })
    }
}
