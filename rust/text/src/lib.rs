//! The `tokenizers` and `minijinja` crates behind the C header `include/shoal_text.h`. Used by `src/text`.

mod decoder;
mod ffi;
mod python;
mod template;
mod tokenizer;

pub use ffi::*;
