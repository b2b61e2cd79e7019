//! A chat template, set up as Hugging Face does it. Used by `ffi.rs`.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::ffi::Failure;
use crate::python;

/// Instructions, and 64-byte units of text, that one rendering may use: under a second and under 130 MB.
const FUEL: u64 = 2_000_000;
/// Nested macros, includes and blocks; each takes stack.
const MAX_RECURSION: usize = 100;
/// Reserved, not touched: only a template that nests values without end uses more than a few pages.
const STACK_BYTES: usize = 1 << 28;
const MAX_SOURCE_BYTES: usize = 1 << 20;
const NAME: &str = "chat_template";

pub struct CompiledTemplate {
    environment: Environment<'static>,
}

impl CompiledTemplate {
    pub fn compile(source: &str) -> Result<Self, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Failure::limit(format!("the chat template is longer than {MAX_SOURCE_BYTES} bytes")));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failure)?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        // Indenting a deep value takes space with the square of its depth, and fuel pays only afterwards.
        environment.remove_filter("pprint");
        environment.remove_global("debug");
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(failure)?;
        Ok(Self { environment })
    }

    /// On a thread of its own: a template can nest a list as deep as the fuel lasts, and the library prints,
    /// compares and drops such a value by recursion.
    pub fn render(&self, variables: &BTreeMap<String, serde_json::Value>) -> Result<String, Failure> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
            let running = thread
                .spawn_scoped(scope, || self.render_here(variables))
                .map_err(|error| Failure::refused(format!("no thread to render the template: {error}")))?;
            running.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
        })
    }

    fn render_here(&self, variables: &BTreeMap<String, serde_json::Value>) -> Result<String, Failure> {
        let template = self.environment.get_template(NAME).map_err(failure)?;
        template.render(Value::from(Serde(variables))).map_err(failure)
    }

    pub fn uses(&self, variable: &str) -> Result<bool, Failure> {
        let template = self.environment.get_template(NAME).map_err(failure)?;
        Ok(template.undeclared_variables(false).contains(variable))
    }
}

/// The text that a template gave to `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    python::strftime_now(format).map_err(|text| Error::new(ErrorKind::InvalidOperation, text))
}

/// `tojson` of Hugging Face: `json.dumps` without the escapes that Jinja adds for HTML.
fn tojson(state: &State, value: &Value, indent: Option<usize>, arguments: Kwargs) -> Result<String, Error> {
    let separators = match arguments.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            let part = |i: usize| Ok::<_, Error>(pair.get_item(&Value::from(i))?.to_string());
            Some((part(0)?, part(1)?))
        }
        _ => None,
    };
    let options = python::DumpOptions {
        indent: indent.or(arguments.get::<Option<usize>>("indent")?).map(|width| width.min(64)),
        separators,
        ensure_ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    arguments.assert_all_used()?;
    let text = python::dumps(value, &options)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(text)
}

/// `{% generation %}` only marks text for training: it renders like a condition that holds.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (inner, after) = tag.split_at(end);
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&inner.replacen(word, "if true", 1)),
            "endgeneration" => out.push_str(&inner.replacen(word, "endif", 1)),
            _ => out.push_str(inner),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn failure(error: Error) -> Failure {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(Raised(text)) = cause.downcast_ref::<Raised>() {
            return Failure::raised(text.clone());
        }
        source = cause.source();
    }
    // One line: the kind with its detail and place, then each deeper cause.
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => Failure::limit(text),
        _ => Failure::refused(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, variables: &str) -> Result<String, Failure> {
        let variables: BTreeMap<String, serde_json::Value> = serde_json::from_str(variables).unwrap();
        CompiledTemplate::compile(source)?.render(&variables)
    }

    #[test]
    fn generation_tags_vanish_with_their_whitespace_control() {
        let source = "a {%- generation -%} b {% endgeneration %}\nc{% raw %}{% x";
        assert_eq!(without_generation_tags(source), "a {%- if true -%} b {% endif %}\nc{% raw %}{% x");
        assert_eq!(render("a {%- generation -%} b {% endgeneration %}\nc", "{}").unwrap(), "ab c");
    }

    #[test]
    fn raised_text_arrives_alone_even_out_of_a_macro() {
        let source = "{% macro m() %}{{ raise_exception('Roles must alternate') }}{% endmacro %}{{ m() }}";
        let failure = render(source, "{}").unwrap_err();
        assert_eq!((failure.code, failure.text.as_str()), (crate::ffi::RAISED, "Roles must alternate"));
    }

    #[test]
    fn loops_and_doubling_strings_run_out_of_fuel() {
        let loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
        let doubling =
            "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
        let repeated = "{{ ('x' * 999999999) | length }}";
        for source in [loops, doubling, repeated] {
            assert_eq!(render(source, "{}").unwrap_err().code, crate::ffi::LIMIT, "{source}");
        }
    }

    #[test]
    fn endless_recursion_and_deep_nesting_are_errors() {
        assert!(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{}").is_err());
        assert!(CompiledTemplate::compile(&format!("{{{{ {}1{} }}}}", "(".repeat(9999), ")".repeat(9999))).is_err());
        assert!(CompiledTemplate::compile(&"{% if true %}".repeat(9999)).is_err());
    }

    #[test]
    fn a_list_nested_by_a_loop_does_not_end_the_process() {
        let nest = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}";
        let _ = render(nest, "{}");
        let _ = render(&format!("{nest}{{{{ ns.x }}}}"), "{}");
        let _ = render(&format!("{nest}{{{{ ns.x | tojson }}}}"), "{}");
        let _ = render(&format!("{nest}{{{{ ns.x == ns.x }}}}"), "{}");
        let _ = render(&format!("{nest}{{{{ [ns.x, [ns.x]] | sort | unique | list }}}}"), "{}");
        assert!(render(&format!("{nest}{{{{ ns.x | pprint }}}}"), "{}").is_err());
        assert!(render(&format!("{nest}{{{{ debug() }}}}"), "{}").is_err());
    }

    #[test]
    fn knows_the_variables_it_reads() {
        let template =
            CompiledTemplate::compile("{% set a = 1 %}{{ a }}{% if tools %}{{ guideline }}{% endif %}").unwrap();
        assert!(template.uses("tools").unwrap() && template.uses("guideline").unwrap());
        assert!(!template.uses("a").unwrap());
    }
}
