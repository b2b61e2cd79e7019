//! What chat templates expect of Python: `json.dumps` and `strftime`. Used by `template.rs`.

use std::ffi::CString;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The arguments of `json.dumps`, as the `tojson` of Hugging Face templates passes them on.
#[derive(Default)]
pub struct DumpOptions {
    pub indent: Option<usize>,
    pub separators: Option<(String, String)>,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

/// Deeper values are an error, as JSON readers have it.
const MAX_DEPTH: usize = 128;

/// Longer output is an error: indented lines can be far longer than the values on them.
const MAX_OUTPUT_BYTES: usize = 64 << 20;

pub fn dumps(value: &Value, options: &DumpOptions) -> Result<String, Error> {
    let default = if options.indent.is_some() { (",", ": ") } else { (", ", ": ") };
    let (item, key) = match &options.separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        None => default,
    };
    let mut dump = Dump { options, item, key, out: String::new() };
    dump.value(value, 1)?;
    Ok(dump.out)
}

struct Dump<'a> {
    options: &'a DumpOptions,
    item: &'a str,
    key: &'a str,
    out: String,
}

impl Dump<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: the value is nested too deeply"));
        }
        if self.out.len() > MAX_OUTPUT_BYTES {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: the text is too long"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool if value.is_true() => self.out.push_str("true"),
            ValueKind::Bool => self.out.push_str("false"),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float_repr(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                return self.list('[', ']', items.len(), depth, |dump, i| dump.value(&items[i], depth + 1));
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.options.sort_keys {
                    keys.sort();
                }
                return self.list('{', '}', keys.len(), depth, |dump, i| {
                    dump.string(&keys[i].to_string());
                    dump.out.push_str(dump.key);
                    dump.value(&value.get_item(&keys[i])?, depth + 1)
                });
            }
            kind => {
                return Err(Error::new(ErrorKind::BadSerialization, format!("tojson: {kind} is not JSON serializable")))
            }
        }
        Ok(())
    }

    fn list<F>(&mut self, open: char, close: char, count: usize, depth: usize, mut item: F) -> Result<(), Error>
    where
        F: FnMut(&mut Self, usize) -> Result<(), Error>,
    {
        self.out.push(open);
        for i in 0..count {
            if i > 0 {
                self.out.push_str(self.item);
            }
            self.new_line(depth);
            item(self, i)?;
        }
        if count > 0 {
            self.new_line(depth - 1);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.options.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.options.ensure_ascii && c > '\u{7e}') => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        if c == '\u{7f}' {
            return self.out.push(c);
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            self.out.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

/// Python's `repr(float)`: shortest digits, exponent form below 1e-4 and from 1e16 on.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{value:?}")
}

/// The local time now, formatted; an empty string where the format makes none.
pub fn strftime_now(format: &str) -> Result<String, String> {
    const MAX_FORMAT_BYTES: usize = 256;
    if format.len() > MAX_FORMAT_BYTES {
        return Err(format!("strftime_now: the format is longer than {MAX_FORMAT_BYTES} bytes"));
    }
    let format = CString::new(format).map_err(|_| "strftime_now: the format holds a zero byte".to_string())?;
    let mut text = vec![0u8; 16 * MAX_FORMAT_BYTES];
    // SAFETY: every pointer is to a live value of the size that is told; `format` ends with a zero byte.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut parts);
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &parts)
    };
    text.truncate(length);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1.25e-5, "1.25e-05"),
        ];
        for (value, text) in cases {
            assert_eq!(float_repr(value), text);
        }
    }

    fn value_of(json: &str) -> Value {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        Value::from(minijinja::value::Serde(value))
    }

    #[test]
    fn dumps_as_python_does() {
        let value = value_of(r#"{"b":[1,2.0,"<é\u0001>"],"a":{},"c":[],"d":[null,true,-7,18446744073709551615]}"#);
        let text = dumps(&value, &DumpOptions::default()).unwrap();
        let expected = r#"{"b": [1, 2.0, "<é\u0001>"], "a": {}, "c": [], "d": [null, true, -7, 18446744073709551615]}"#;
        assert_eq!(text, expected);

        let value = value_of(r#"{"b":[1,"<é\u0001>"],"a":{},"c":[]}"#);
        let options = DumpOptions { indent: Some(2), sort_keys: true, ensure_ascii: true, separators: None };
        let expected = "{\n  \"a\": {},\n  \"b\": [\n    1,\n    \"<\\u00e9\\u0001>\"\n  ],\n  \"c\": []\n}";
        assert_eq!(dumps(&value, &options).unwrap(), expected);
        let options = DumpOptions { separators: Some((",".into(), ":".into())), ..Default::default() };
        assert_eq!(dumps(&value, &options).unwrap(), r#"{"b":[1,"<é\u0001>"],"a":{},"c":[]}"#);
        let options = DumpOptions { ensure_ascii: true, ..Default::default() };
        assert_eq!(dumps(&Value::from("😀\u{7f}"), &options).unwrap(), "\"\\ud83d\\ude00\u{7f}\"");
        assert!(dumps(&Value::UNDEFINED, &options).is_err());
        let wide = Value::from(vec![vec!["x"; 4000]; 400]);
        let options = DumpOptions { indent: Some(64), ..Default::default() };
        assert!(dumps(&wide, &options).is_err());
    }

    #[test]
    fn strftime_knows_the_year() {
        let year = strftime_now("%Y").unwrap();
        assert!(year.len() == 4 && year.as_str() > "2023", "{year}");
        assert_eq!(strftime_now("").unwrap(), "");
        assert!(strftime_now(&"x".repeat(300)).is_err());
        assert!(strftime_now("a\0b").is_err());
    }
}
