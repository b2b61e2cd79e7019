//! A tokenizer's decoder, seen token by token: the bytes that each token adds to a text. Used by `tokenizer.rs`.
//!
//! The library decodes whole sequences to text, so a character spread over several tokens is lost on the way.
//! Every decoder of the supported models maps token after token, so bytes can be had one token at a time.

use tokenizers::{Decoder, DecoderWrapper};

use crate::ffi::Failure;

enum Step {
    /// The library's own step; it maps each token alone, knowing only whether it is the first.
    Library(Box<DecoderWrapper>),
    /// `<0x0A>` is the byte 10.
    ByteFallback,
    /// Each character stands for one byte, as in GPT-2.
    ByteLevel,
}

pub struct TokenDecoder {
    steps: Vec<Step>,
    /// Without any decoder the library joins pieces with a space.
    joins_with_space: bool,
    pub strip_prefix: String,
    pub strip_count: usize,
    byte_of_char: Vec<Option<u8>>,
}

impl TokenDecoder {
    pub fn new(decoder: Option<&DecoderWrapper>) -> Result<Self, Failure> {
        let mut result = Self {
            steps: Vec::new(),
            joins_with_space: decoder.is_none(),
            strip_prefix: String::new(),
            strip_count: 0,
            byte_of_char: byte_of_char(),
        };
        let mut is_fused = false;
        for step in decoder.map(flatten).unwrap_or_default() {
            result.push_step(step, &mut is_fused)?;
        }
        Ok(result)
    }

    fn push_step(&mut self, step: &DecoderWrapper, is_fused: &mut bool) -> Result<(), Failure> {
        let refuse = |name: &str| Err(Failure::refused(format!("decoder {name} is not supported here")));
        match step {
            DecoderWrapper::Fuse(_) => *is_fused = true,
            DecoderWrapper::Strip(strip) if *is_fused => {
                if strip.stop != 0 || self.strip_count != 0 {
                    return refuse("Strip at the end of the whole text");
                }
                self.strip_prefix = strip.content.to_string();
                self.strip_count = strip.start;
            }
            _ if *is_fused => return refuse("after Fuse"),
            DecoderWrapper::BPE(_) => return refuse("BPEDecoder"),
            DecoderWrapper::CTC(_) => return refuse("CTC"),
            DecoderWrapper::Strip(strip) if strip.stop != 0 => return refuse("Strip at the end"),
            DecoderWrapper::ByteFallback(_) => self.steps.push(Step::ByteFallback),
            DecoderWrapper::ByteLevel(_) => {
                self.steps.push(Step::ByteLevel);
                *is_fused = true;
            }
            other => self.steps.push(Step::Library(Box::new(other.clone()))),
        }
        Ok(())
    }

    /// The bytes that `piece` adds to a text; `is_first` says that no token came before it.
    pub fn token_bytes(&self, piece: &str, is_first: bool) -> Result<Vec<u8>, Failure> {
        let mut text = piece.to_owned();
        for step in &self.steps {
            match step {
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return Ok(vec![byte]);
                    }
                }
                Step::ByteLevel => return Ok(self.byte_level(&text)),
                Step::Library(decoder) => text = decode_one(decoder, text, is_first)?,
            }
        }
        if self.joins_with_space && !is_first {
            text.insert(0, ' ');
        }
        Ok(text.into_bytes())
    }

    /// A piece with a character outside the alphabet (an added token) stands for itself.
    fn byte_level(&self, piece: &str) -> Vec<u8> {
        let byte = |c: char| self.byte_of_char.get(c as usize).copied().flatten();
        let bytes: Option<Vec<u8>> = piece.chars().map(byte).collect();
        bytes.unwrap_or_else(|| piece.as_bytes().to_vec())
    }
}

/// A nested sequence is its steps, one after the other.
fn flatten(decoder: &DecoderWrapper) -> Vec<&DecoderWrapper> {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().flat_map(flatten).collect(),
        other => vec![other],
    }
}

fn decode_one(decoder: &DecoderWrapper, piece: String, is_first: bool) -> Result<String, Failure> {
    let decoded = if is_first {
        decoder.decode_chain(vec![piece])?
    } else {
        let mut pair = decoder.decode_chain(vec![String::from("a"), piece])?;
        pair.remove(0);
        pair
    };
    Ok(decoded.concat())
}

fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's alphabet: printable bytes are themselves, the others follow from U+0100 on, in order.
fn byte_of_char() -> Vec<Option<u8>> {
    let mut table = vec![None; 0x200];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            table[usize::from(byte)] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::decoders::byte_level::ByteLevel;

    fn decoder(json: &str) -> Result<TokenDecoder, Failure> {
        let wrapper: DecoderWrapper = serde_json::from_str(json).unwrap();
        TokenDecoder::new(Some(&wrapper))
    }

    #[test]
    fn alphabet_is_the_librarys() {
        let table = byte_of_char();
        let ours: Vec<char> =
            (0..0x200u32).filter(|c| table[*c as usize].is_some()).map(|c| char::from_u32(c).unwrap()).collect();
        assert_eq!(ours.len(), 256);
        assert!(ours.iter().all(|c| ByteLevel::alphabet().contains(c)));
    }

    #[test]
    fn byte_level_gives_single_bytes_and_added_tokens_themselves() {
        let d = decoder(r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true}"#).unwrap();
        assert_eq!(d.token_bytes("Ġhello", false).unwrap(), b" hello");
        assert_eq!(d.token_bytes("ä½", true).unwrap(), [0xE4, 0xBD]);
        assert_eq!(d.token_bytes("a b", true).unwrap(), b"a b");
    }

    #[test]
    fn llama_sequence_gives_bytes_and_a_strip() {
        let d = decoder(
            r#"{"type":"Sequence","decoders":[
                {"type":"Replace","pattern":{"String":"▁"},"content":" "},
                {"type":"ByteFallback"},{"type":"Fuse"},
                {"type":"Strip","content":" ","start":1,"stop":0}]}"#,
        )
        .unwrap();
        assert_eq!(d.token_bytes("▁Hey", true).unwrap(), b" Hey");
        assert_eq!(d.token_bytes("<0xE5>", false).unwrap(), [0xE5]);
        assert_eq!(d.token_bytes("<0x+5>", false).unwrap(), [5]);
        assert_eq!((d.strip_prefix.as_str(), d.strip_count), (" ", 1));
    }

    #[test]
    fn position_matters_to_metaspace_and_wordpiece() {
        let d = decoder(r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#).unwrap();
        assert_eq!(d.token_bytes("▁a", true).unwrap(), b"a");
        assert_eq!(d.token_bytes("▁a", false).unwrap(), b" a");
        let d = decoder(r###"{"type":"WordPiece","prefix":"##","cleanup":false}"###).unwrap();
        assert_eq!(d.token_bytes("a", true).unwrap(), b"a");
        assert_eq!(d.token_bytes("a", false).unwrap(), b" a");
        assert_eq!(d.token_bytes("##a", false).unwrap(), b"a");
    }

    #[test]
    fn unsupported_decoders_are_refused() {
        assert!(decoder(r#"{"type":"BPEDecoder","suffix":"</w>"}"#).is_err());
        assert!(decoder(r#"{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]}"#).is_err());
        assert!(decoder(r#"{"type":"Strip","content":" ","start":0,"stop":1}"#).is_err());
    }
}
