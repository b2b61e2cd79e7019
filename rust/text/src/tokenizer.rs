//! A `tokenizers` tokenizer and what the C interface asks of it. Used by `ffi.rs`.

use std::ops::Range;

use tokenizers::tokenizer::normalizer::Range as TextRange;
use tokenizers::{
    AddedToken, Encoding, Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, Token, Tokenizer,
};

use crate::decoder::TokenDecoder;
use crate::ffi::Failure;

/// An added token as tokenizer_config.json states it.
pub struct StatedToken {
    pub token: AddedToken,
    /// Leave it as it is if tokenizer.json already lists it.
    pub keep_known: bool,
}

pub struct LoadedTokenizer {
    inner: Tokenizer,
    decoder: TokenDecoder,
    special_ids: Vec<u32>,
    vocab_size: usize,
}

impl LoadedTokenizer {
    pub fn load(json: &[u8], added: Vec<StatedToken>) -> Result<Self, Failure> {
        let mut inner = Tokenizer::from_bytes(json)?;
        inner.with_truncation(None)?;
        inner.with_padding(None);
        // A token of tokenizer_config.json that has no id anywhere would move the vocabulary's end: not ours to do.
        let is_wanted = |stated: &StatedToken| {
            let listed = inner.get_added_vocabulary().get_vocab().contains_key(&stated.token.content);
            inner.token_to_id(&stated.token.content).is_some() && !(stated.keep_known && listed)
        };
        let wanted: Vec<AddedToken> = added.into_iter().filter(is_wanted).map(|stated| stated.token).collect();
        inner.add_tokens(wanted)?;

        let decoder = TokenDecoder::new(inner.get_decoder())?;
        let mut special_ids: Vec<u32> =
            inner.get_added_tokens_decoder().iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        special_ids.sort_unstable();
        let highest = inner.get_vocab(true).into_values().max();
        let vocab_size = highest.map_or(0, |id| id as usize + 1);
        Ok(Self { inner, decoder, special_ids, vocab_size })
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn decoder(&self) -> &TokenDecoder {
        &self.decoder
    }

    pub fn special_ids(&self) -> &[u32] {
        &self.special_ids
    }

    pub fn token_id(&self, piece: &str) -> Option<u32> {
        self.inner.token_to_id(piece)
    }

    pub fn piece(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Bytes of a token of unknown id: none.
    pub fn token_bytes(&self, id: u32, is_first: bool) -> Result<Vec<u8>, Failure> {
        // The form that decoding starts from may be a normalized one.
        let added = self.inner.get_added_vocabulary().simple_id_to_token(id);
        match added.or_else(|| self.inner.get_model().id_to_token(id)) {
            Some(piece) => self.decoder.token_bytes(&piece, is_first),
            None => Ok(Vec::new()),
        }
    }

    pub fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
        plain: &[Range<usize>],
        with_offsets: bool,
    ) -> Result<Encoding, Failure> {
        if let Some(kept) = self.added_tokens_outside(text, plain) {
            return self.encode_around(text, &kept, add_special_tokens);
        }
        let encoding = if with_offsets {
            self.inner.encode_char_offsets(text, add_special_tokens)?
        } else {
            self.inner.encode_fast(text, add_special_tokens)?
        };
        Ok(encoding)
    }

    /// The added tokens found in `text` less the special ones that touch a plain range; None if nothing is dropped.
    fn added_tokens_outside(&self, text: &str, plain: &[Range<usize>]) -> Option<Vec<(Range<usize>, u32)>> {
        if plain.is_empty() {
            return None;
        }
        let split = self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), text);
        let found: Vec<(Range<usize>, u32)> = split
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .filter_map(|(_, (start, stop), tokens)| Some((start..stop, tokens.as_ref()?.first()?.id)))
            .collect();
        let touches = |at: &Range<usize>| plain.iter().any(|range| at.start < range.end && range.start < at.end);
        let is_special = |id: &u32| self.special_ids.binary_search(id).is_ok();
        let kept: Vec<_> = found.iter().filter(|(at, id)| !(is_special(id) && touches(at))).cloned().collect();
        (kept.len() != found.len()).then_some(kept)
    }

    /// The library's own pipeline, with the added tokens given instead of searched.
    fn encode_around(
        &self,
        text: &str,
        added: &[(Range<usize>, u32)],
        add_special_tokens: bool,
    ) -> Result<Encoding, Failure> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, whole| cut(&whole, text.len(), added))?;
        if let Some(normalizer) = self.inner.get_normalizer() {
            pieces.normalize(|piece| normalizer.normalize(piece))?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.inner.get_model().tokenize(piece.get()))?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::Char)?;
        Ok(self.inner.post_process(encoding, None, add_special_tokens)?)
    }
}

type Piece = (NormalizedString, Option<Vec<Token>>);

fn cut(whole: &NormalizedString, length: usize, added: &[(Range<usize>, u32)]) -> tokenizers::Result<Vec<Piece>> {
    let slice = |range: Range<usize>| {
        whole.slice(TextRange::Original(range)).ok_or_else(|| tokenizers::Error::from("a token splits a character"))
    };
    let mut pieces = Vec::new();
    let mut position = 0;
    for (range, id) in added {
        if position < range.start {
            pieces.push((slice(position..range.start)?, None));
        }
        let marker = slice(range.clone())?;
        let token = Token::new(*id, marker.get().to_owned(), (0, marker.get().len()));
        pieces.push((marker, Some(vec![token])));
        position = range.end;
    }
    if position < length {
        pieces.push((slice(position..length)?, None));
    }
    Ok(pieces)
}
