//! The `tokenizers`, `minijinja` and `llguidance` crates behind the C header `include/shoal_text.h`. Used by `src/text`.

mod decoder;
mod ffi;
mod grammar;
mod grammar_ffi;
mod python;
mod template;
mod tokenizer;

pub use ffi::*;
pub use grammar_ffi::*;
