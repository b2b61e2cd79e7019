//! The exported C functions of tokenizers and templates, and how failures and memory cross the boundary. Mirrors `include/shoal_text.h`.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use tokenizers::AddedToken;

use crate::template::CompiledTemplate;
use crate::tokenizer::{LoadedTokenizer, StatedToken};

pub const OK: i32 = 0;
pub const INVALID_INPUT: i32 = 1;
pub const LIMIT: i32 = 2;
pub const RAISED: i32 = 3;
pub const FAILED: i32 = 4;
pub const PANIC: i32 = 5;

#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub text: String,
}

impl Failure {
    pub fn invalid(text: impl Into<String>) -> Self {
        Self { code: INVALID_INPUT, text: text.into() }
    }
    pub fn limit(text: impl Into<String>) -> Self {
        Self { code: LIMIT, text: text.into() }
    }
    pub fn raised(text: impl Into<String>) -> Self {
        Self { code: RAISED, text: text.into() }
    }
    pub fn refused(text: impl Into<String>) -> Self {
        Self { code: FAILED, text: text.into() }
    }
}

impl From<tokenizers::Error> for Failure {
    fn from(error: tokenizers::Error) -> Self {
        Self::refused(error.to_string())
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ShoalTextView {
    data: *const u8,
    length: usize,
}

#[repr(C)]
pub struct ShoalTextBuffer {
    data: *mut u8,
    length: usize,
}

#[repr(C)]
pub struct ShoalTextEncoding {
    ids: *mut i64,
    starts: *mut i64,
    stops: *mut i64,
    count: usize,
}

#[repr(C)]
pub struct ShoalTextRange {
    start: usize,
    stop: usize,
}

#[repr(C)]
pub struct ShoalTextVariable {
    name: ShoalTextView,
    json: ShoalTextView,
}

#[repr(C)]
pub struct ShoalTextTraits {
    vocab_size: i64,
    strip_prefix: ShoalTextBuffer,
    strip_count: usize,
}

#[repr(C)]
pub struct ShoalTextAddedToken {
    content: ShoalTextView,
    single_word: u8,
    lstrip: u8,
    rstrip: u8,
    normalized: u8,
    special: u8,
    keep_known: u8,
}

pub struct ShoalTokenizer(LoadedTokenizer);
pub struct ShoalTemplate(CompiledTemplate);

impl ShoalTokenizer {
    pub(crate) fn inner(&self) -> &LoadedTokenizer {
        &self.0
    }
}

impl ShoalTextView {
    /// SAFETY: `data` is null or points to `length` bytes that live through the call.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: as above.
        unsafe { slice(self.data, self.length) }
    }

    /// SAFETY: as `bytes`.
    pub(crate) unsafe fn text<'a>(self) -> Result<&'a str, Failure> {
        // SAFETY: as above.
        std::str::from_utf8(unsafe { self.bytes() })
            .map_err(|error| Failure::invalid(format!("not valid UTF-8 at byte {}", error.valid_up_to())))
    }
}

/// SAFETY: `data` is null or points to `count` values that live through the call.
pub(crate) unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(data, count) }
}

impl ShoalTextBuffer {
    fn new(bytes: Vec<u8>) -> Self {
        let (data, length) = leak(bytes);
        Self { data, length }
    }
}

fn leak<T>(values: Vec<T>) -> (*mut T, usize) {
    let length = values.len();
    if length == 0 {
        return (std::ptr::null_mut(), 0);
    }
    (Box::into_raw(values.into_boxed_slice()).cast::<T>(), length)
}

/// SAFETY: `data` and `count` came out of `leak`, and are given back once.
unsafe fn reclaim<T>(data: *mut T, count: usize) {
    if !data.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, count)) });
    }
}

impl ShoalTextEncoding {
    fn from_ids(ids: Vec<i64>) -> Self {
        let (ids, count) = leak(ids);
        Self { ids, starts: std::ptr::null_mut(), stops: std::ptr::null_mut(), count }
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

/// Runs `body`; a failure or panic becomes a code and a text.
/// SAFETY: `error` is null or points to a buffer that may be overwritten.
pub(crate) unsafe fn guard(error: *mut ShoalTextBuffer, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // A caught panic is reported by its text; the default hook would print each one to stderr as well.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure { code: PANIC, text: panic_text(payload.as_ref()) },
    };
    if !error.is_null() {
        // SAFETY: as above.
        unsafe { error.write(ShoalTextBuffer::new(failure.text.into_bytes())) };
    }
    failure.code
}

/// SAFETY: `handle` is null or came out of a load or compile and is not yet freed.
pub(crate) unsafe fn borrow<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: as above.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::invalid("null handle"))
}

pub(crate) fn token_of(id: i64) -> Option<u32> {
    u32::try_from(id).ok()
}

/// # Safety
/// `buffer` is null or was filled by this library and not freed since.
#[no_mangle]
pub unsafe extern "C" fn shoal_text_buffer_free(buffer: *mut ShoalTextBuffer) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(buffer) = buffer.as_mut() {
            reclaim(buffer.data, buffer.length);
            *buffer = ShoalTextBuffer::new(Vec::new());
        }
    }
}

/// # Safety
/// `encoding` is null or was filled by this library and not freed since.
#[no_mangle]
pub unsafe extern "C" fn shoal_text_encoding_free(encoding: *mut ShoalTextEncoding) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(encoding) = encoding.as_mut() {
            reclaim(encoding.ids, encoding.count);
            reclaim(encoding.starts, encoding.count);
            reclaim(encoding.stops, encoding.count);
            *encoding = ShoalTextEncoding::from_ids(Vec::new());
        }
    }
}

/// # Safety
/// The views hold for the call; `out` and `traits` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_tokenizer_load(
    json: ShoalTextView,
    added: *const ShoalTextAddedToken,
    added_count: usize,
    out: *mut *mut ShoalTokenizer,
    traits: *mut ShoalTextTraits,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let mut tokens = Vec::with_capacity(added_count);
            for token in slice(added, added_count) {
                tokens.push(StatedToken {
                    keep_known: token.keep_known != 0,
                    token: AddedToken {
                        content: token.content.text()?.to_owned(),
                        single_word: token.single_word != 0,
                        lstrip: token.lstrip != 0,
                        rstrip: token.rstrip != 0,
                        normalized: token.normalized != 0,
                        special: token.special != 0,
                    },
                });
            }
            let tokenizer = LoadedTokenizer::load(json.bytes(), tokens)?;
            traits.write(ShoalTextTraits {
                vocab_size: tokenizer.vocab_size() as i64,
                strip_prefix: ShoalTextBuffer::new(tokenizer.decoder().strip_prefix.clone().into_bytes()),
                strip_count: tokenizer.decoder().strip_count,
            });
            out.write(Box::into_raw(Box::new(ShoalTokenizer(tokenizer))));
            Ok(())
        })
    }
}

/// # Safety
/// `tokenizer` is null or came from `shoal_tokenizer_load`, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn shoal_tokenizer_free(tokenizer: *mut ShoalTokenizer) {
    if !tokenizer.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(tokenizer) });
    }
}

/// # Safety
/// The handle lives, the views hold for the call; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_tokenizer_encode(
    tokenizer: *const ShoalTokenizer,
    text: ShoalTextView,
    add_special_tokens: i32,
    plain: *const ShoalTextRange,
    plain_count: usize,
    with_offsets: i32,
    out: *mut ShoalTextEncoding,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let plain: Vec<Range<usize>> =
                slice(plain, plain_count).iter().map(|range| range.start..range.stop).collect();
            let with_offsets = with_offsets != 0;
            let encoding = borrow(tokenizer)?.0.encode(text.text()?, add_special_tokens != 0, &plain, with_offsets)?;
            let mut result = ShoalTextEncoding::from_ids(encoding.get_ids().iter().map(|id| i64::from(*id)).collect());
            if with_offsets {
                let offsets = encoding.get_offsets();
                result.starts = leak(offsets.iter().map(|(start, _)| *start as i64).collect()).0;
                result.stops = leak(offsets.iter().map(|(_, stop)| *stop as i64).collect()).0;
            }
            out.write(result);
            Ok(())
        })
    }
}

/// # Safety
/// The handle lives; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_tokenizer_token_bytes(
    tokenizer: *const ShoalTokenizer,
    id: i64,
    is_first: i32,
    out: *mut ShoalTextBuffer,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let tokenizer = borrow(tokenizer)?;
            let bytes = token_of(id).map(|id| tokenizer.0.token_bytes(id, is_first != 0)).transpose()?;
            out.write(ShoalTextBuffer::new(bytes.unwrap_or_default()));
            Ok(())
        })
    }
}

/// # Safety
/// The handle lives; `out` and `found` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_tokenizer_piece(
    tokenizer: *const ShoalTokenizer,
    id: i64,
    out: *mut ShoalTextBuffer,
    found: *mut i32,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let tokenizer = borrow(tokenizer)?;
            let piece = token_of(id).and_then(|id| tokenizer.0.piece(id));
            found.write(i32::from(piece.is_some()));
            out.write(ShoalTextBuffer::new(piece.unwrap_or_default().into_bytes()));
            Ok(())
        })
    }
}

/// # Safety
/// The handle lives, the view holds for the call; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_tokenizer_token_id(
    tokenizer: *const ShoalTokenizer,
    piece: ShoalTextView,
    out: *mut i64,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            out.write(borrow(tokenizer)?.0.token_id(piece.text()?).map_or(-1, i64::from));
            Ok(())
        })
    }
}

/// # Safety
/// The handle lives; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_tokenizer_special_ids(
    tokenizer: *const ShoalTokenizer,
    out: *mut ShoalTextEncoding,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let ids = borrow(tokenizer)?.0.special_ids();
            out.write(ShoalTextEncoding::from_ids(ids.iter().map(|id| i64::from(*id)).collect()));
            Ok(())
        })
    }
}

/// # Safety
/// The view holds for the call; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_template_compile(
    source: ShoalTextView,
    out: *mut *mut ShoalTemplate,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let compiled = CompiledTemplate::compile(source.text()?)?;
            out.write(Box::into_raw(Box::new(ShoalTemplate(compiled))));
            Ok(())
        })
    }
}

/// # Safety
/// `compiled` is null or came from `shoal_template_compile`, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn shoal_template_free(compiled: *mut ShoalTemplate) {
    if !compiled.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(compiled) });
    }
}

/// # Safety
/// The handle lives, the views hold for the call; `out` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_template_render(
    compiled: *const ShoalTemplate,
    variables: *const ShoalTextVariable,
    count: usize,
    out: *mut ShoalTextBuffer,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            let mut values = BTreeMap::new();
            for variable in slice(variables, count) {
                let name = variable.name.text()?.to_owned();
                let value = serde_json::from_slice(variable.json.bytes())
                    .map_err(|error| Failure::invalid(format!("{name}: {error}")))?;
                values.insert(name, value);
            }
            out.write(ShoalTextBuffer::new(borrow(compiled)?.0.render(&values)?.into_bytes()));
            Ok(())
        })
    }
}

/// # Safety
/// The handle lives, the view holds for the call; `uses` may be overwritten.
#[no_mangle]
pub unsafe extern "C" fn shoal_template_uses(
    compiled: *const ShoalTemplate,
    name: ShoalTextView,
    uses: *mut i32,
    error: *mut ShoalTextBuffer,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        guard(error, || {
            uses.write(i32::from(borrow(compiled)?.0.uses(name.text()?)?));
            Ok(())
        })
    }
}
