#!/usr/bin/env python3
"""Renders chat templates with real Jinja2, set up as Hugging Face does it, and writes what comes out.

    pip install jinja2==3.1.6 && tools/make_template_fixtures.py

writes tests/data/templates/fixtures.json, read by src/text/chat_template_test.cc.
"""

import json
import pathlib

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/templates/fixtures.json"


class Generation(Extension):
    """`{% generation %}` marks text for training; rendering is not changed by it."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


SOLAR = """{% for message in messages %}
{% if message['role'] == 'system' %}
### System:
{{ message['content'] }}

{% elif message.role == 'user' %}
### User:
{{ message.content }}

{% else %}
### Assistant:
{{ message.content }}{{ eos_token }}

{% endif %}
{% if loop.last and add_generation_prompt and message['role'] != 'assistant' %}
### Assistant:
{% endif %}
{% endfor %}
"""

CHATML = """{%- if not add_generation_prompt is defined -%}{%- set add_generation_prompt = false -%}{%- endif -%}
{%- if messages[0]['role'] != 'system' -%}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {% generation %}{{- message['content'] | trim -}}{% endgeneration %}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

COMMAND = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% if system_message != false %}\
{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}\
{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% set content = message['content'] %}{% if message['role'] == 'user' %}\
{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% elif message['role'] == 'assistant' %}\
{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

FALCON = """{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}\
{% if message['role'] == 'system' %}{{ message['content'] }}{% elif message['role'] == 'user' %}\
{{ 'User: ' + message['content'].replace('\\r\\n', '\\n').replace('\\n\\n', '\\n') }}\
{% elif message['role'] == 'assistant' %}{{ 'Falcon: ' + message['content'] }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '\\n' + 'Falcon:' }}{% endif %}"""

TOOLS = """{%- macro describe(tool, depth=0) -%}
{{ '  ' * depth }}- {{ tool.function.name }}: {{ tool.function.description | default('none', true) }}
{%- endmacro -%}
{%- set ns = namespace(system='', turns=0, last=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}{%- set ns.system = ns.system ~ message.content -%}{%- continue -%}{%- endif -%}
  {%- set ns.turns = ns.turns + 1 -%}{%- set ns.last = loop.index0 -%}
{%- endfor -%}
system={{ ns.system }} turns={{ ns.turns }} last={{ ns.last }}
{% if tools is not none and tools | length > 0 %}
{% for tool in tools %}
{{ describe(tool, loop.index) }}
{{ tool | tojson }}
{{ tool.function.parameters | tojson(indent=2) }}
{% endfor %}
{% endif %}
{% for message in messages if message.role != 'system' %}
{% if message.tool_calls is defined and message.tool_calls %}
{% for call in message.tool_calls %}<call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</call>
{% endfor %}
{% elif message.content is string %}
[{{ loop.index }}/{{ loop.length }} {{ message.role.upper() }}] {{ message.content.split('</think>')[-1].lstrip('\\n') }}
{% else %}
{% for part in message.content %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part.type }}>{% endif %}{% endfor %}

{% endif %}
{% if loop.index0 > 5 %}{% break %}{% endif %}
{% endfor %}
{{- '' if not add_generation_prompt else 'assistant:' }}"""

METHODS = """{% set text = messages[0].content %}
{{ text.strip() }}|{{ text.title() }}|{{ text.upper() }}|{{ text.lower() }}|{{ text.capitalize() }}
{{ text.split() }}|{{ text.split(' ', 1) }}|{{ text.splitlines() | length }}|{{ text.startswith('  he') }}|{{ text.endswith(('x', '\\n')) }}
{{ text[2:7] }}|{{ text[::-1] }}|{{ text[-4:] }}|{{ 'ell' in text }}|{{ text.find('l') }}|{{ text.count('l') }}|{{ text.replace('l', 'L', 1) }}
{{ messages[0].keys() | list }}|{{ messages[0].get('nothing', 'else') }}|{{ messages[0].get('nothing') }}
{{ messages | map(attribute='role') | join(', ') }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ true }} {{ none }} {{ 1.0 }} {{ 3 / 2 }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ [1, 'a', none, true, {'k': 1.5}] }} {{ undefined_name }}|
{{ messages[0] }}
{{ messages | first is mapping }} {{ 1 is number }} {{ text is string }} {{ nothing is defined }} {{ [] is iterable }} {{ none is none }}
{% for key, value in messages[0].items() %}{{ key }}={{ value | length }};{% endfor %}
{% for item in [3, 1, 2] | sort %}{{ loop.index }}:{{ item }}{{ ',' if not loop.last }}{% endfor %} {{ loop is defined }}
{{ "%s-%d" | format('a', 5) }} {{ 'a' ~ 1 ~ none ~ true }} {{ (1, 2) | tojson }} {{ {'b': 1, 'a': 'é<&>'} | tojson(sort_keys=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }}
{% filter upper %}filtered {{ text.strip() }}{% endfilter %}
{% set block %}captured {{ text.strip() }}{% endset %}{{ block }} {# a comment #} {{- ' tight ' -}} end
    {% if true %}indented block tag{% endif %}

  {%+ if true %}kept indent{% endif +%}
last line
"""

SYSTEM = [{"role": "system", "content": "Be brief."}]
TURNS = [
    {"role": "user", "content": "  Hello <b>\"you\"</b> & 'me'\r\n\r\nsecond  "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi! 안녕 👋"},
    {"role": "user", "content": "Bye {{ not_a_template }} {% raw %}"},
]
TOOL_LIST = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Weather <now> in a "city" — °C',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "n": {"enum": [1, 2.5, None]}},
                "required": [],
            },
        },
    },
    {"type": "function", "function": {"name": "z", "parameters": {}}},
]
TOOL_TURNS = (
    SYSTEM
    + TURNS[:1]
    + [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Zürich", "n": 1e-7, "big": 1e22}}}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "12 °C"}, {"type": "image"}]},
    ]
)


def cases():
    for name, template in [("solar", SOLAR), ("chatml", CHATML), ("command", COMMAND), ("falcon", FALCON)]:
        for label, messages in [("turns", TURNS), ("system", SYSTEM + TURNS), ("one", TURNS[:1])]:
            for prompt in (True, False):
                yield f"{name} {label} {prompt}", template, messages, None, prompt
    yield "command refuses", COMMAND, TURNS[1:], None, True
    yield "tools", TOOLS, TOOL_TURNS, TOOL_LIST, True
    yield "no tools", TOOLS, SYSTEM + TURNS, None, False
    yield "methods", METHODS, [{"role": "user", "content": "  hello World of fish\n"}, *TURNS], None, True


def main():
    env = environment()
    fixtures = []
    for name, template, messages, tools, prompt in cases():
        case = {
            "name": name,
            "template": template,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": prompt,
        }
        try:
            case["expected"] = env.from_string(template).render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                bos_token="<s>",
                eos_token="</s>",
            )
        except TemplateError as error:
            case["raises"] = str(error)
        fixtures.append(case)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(fixtures, ensure_ascii=True, indent=1) + "\n")
    print(f"{OUTPUT}: {len(fixtures)} cases, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
